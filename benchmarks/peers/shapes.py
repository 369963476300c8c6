"""How much memory a token reads and how much arithmetic a prompt takes, from a model's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """Weights used by every token, counted in elements: ``layers`` in the layers' matrices, ``head`` in the last one.

    ``attention`` is heads times head size, summed over the layers; ``kv`` is elements of keys and values a token keeps.
    """

    layers: int
    head: int
    attention: int
    kv: int
    vocabulary: int

    def weight_bytes(self, bits: tuple[float, float]) -> float:
        """Bytes of weights read by a decoding step, for ``bits`` of a weight in layers and head."""
        return (self.layers * bits[0] + self.head * bits[1]) / 8

    def prefill_flops(self, tokens: int) -> float:
        """Additions and multiplications of one prompt: matrices, causal attention, the head for one position."""
        return 2 * (self.layers * tokens + self.head) + 2 * self.attention * tokens * tokens

    def kv_bytes(self, tokens: int) -> float:
        """Bytes of keys and values of ``tokens`` tokens in 16 bits."""
        return 2.0 * self.kv * tokens


def read_shape(model: Path) -> Shape:
    """Of a decoder with gated MLPs, or with experts, of which those count that a token takes.

    Raises ``KeyError`` for a config that is none.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    experts = config.get("num_experts", 0)
    if experts:
        inner = config["num_experts_per_tok"] * config["moe_intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or hidden // heads
    matrices = hidden * size * (2 * heads + 2 * kv_heads) + 3 * hidden * inner + hidden * experts
    return Shape(
        layers=layers * matrices,
        head=hidden * config["vocab_size"],
        attention=layers * heads * size,
        kv=2 * layers * kv_heads * size,
        vocabulary=config["vocab_size"],
    )
