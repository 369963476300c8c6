"""Qwen 1: Llama under names of its own, with q, k and v in one tensor.

Beyond ``seq_length`` tokens, the rope is scaled by dynamic NTK and queries grow with the logarithm of their position
(log-n attention). Source: the ``modeling_qwen.py`` that its checkpoints are published with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QWenConfig(DecoderConfig):
    """The numbers of a Qwen 1."""

    log_n: int | None
    """Queries at positions beyond so many tokens grow; None where none do."""


class LogNAttention(Attention):
    """Attention whose queries are multiplied by the logarithm of their position to base ``trained``, which is at least
    one: x [T, hidden] -> [T, hidden].
    """

    variation: ClassVar[str] = "log_n"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, *, trained: int, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        self.trained = trained

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        queries, keys = super().turn(qk, step).split((self.heads, self.kv_heads), dim=1)
        growth = ((step.positions[0].float() + 1.0).log() / math.log(self.trained)).clamp(min=1.0)
        return torch.cat((queries * growth[:, None, None].to(qk.dtype), keys), dim=1)


class QWenLayer(LlamaLayer):
    fused = partial(Heads.stacked, name="c_attn")
    qkv_bias = True
    out_bias = mlp_bias = False

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> Any:
        assert isinstance(c, QWenConfig)
        if c.log_n is not None:
            return super().make_attention(w, c, layer, rope, LogNAttention, trained=c.log_n, **more)
        return super().make_attention(w, c, layer, rope, kind, **more)


class QWen(DenseDecoder):
    layer = QWenLayer
    keys = {"rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base", "head_dim": "kv_channels",
            "partial_rotary_factor": "rotary_pct"}  # fmt: skip
    defaults = {"rotary_fraction": 1.0}
    prefixes = (
        ("transformer.h.*.ln_1", "model.layers.*.input_layernorm"),
        ("transformer.h.*.ln_2", "model.layers.*.post_attention_layernorm"),
        ("transformer.h.*.attn.c_proj", "model.layers.*.self_attn.o_proj"),
        ("transformer.h.*.attn", "model.layers.*.self_attn"),
        ("transformer.h.*.mlp.w1", "model.layers.*.mlp.up_proj"),
        ("transformer.h.*.mlp.w2", "model.layers.*.mlp.gate_proj"),
        ("transformer.h.*.mlp.c_proj", "model.layers.*.mlp.down_proj"),
        ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        trained = config.get("seq_length")
        self.trained = trained if isinstance(trained, int) and 1 < trained < max_len else None
        """Tokens beyond which attention is scaled; None where no input is as long."""
        if self.trained is not None and config.get("use_dynamic_ntk"):
            config = {**config, "rope_scaling": stretch_rope(self.trained, max_len)}
        super().__init__(w, config, max_len)

    def read(self, keys: Keys) -> QWenConfig:
        c = super().read(keys)
        keys.agree("no_bias", True)
        keys.agree("scale_attn_weights", True)
        keys.skip("seq_length", "use_dynamic_ntk")
        grows = keys.take("use_logn_attn", bool, False)
        own = {name: getattr(c, name) for name in DecoderConfig.__dataclass_fields__}
        found = QWenConfig(**own, log_n=self.trained if grows else None)
        # gate and up together
        return replace(found, intermediate_size=c.intermediate_size // 2)


def stretch_rope(trained: int, max_len: int) -> Mapping[str, Any]:
    """The rope of prompts of ``max_len`` tokens by Qwen's dynamic NTK, as ``rope_scaling``.

    The published code scales by each prompt's length, in steps of powers of two. A cached key is rotated once, and
    prompts share cached keys, so all prompts are rotated alike.
    """
    log.warning(
        "inputs of up to %d tokens are rotated by dynamic NTK for %d tokens, too: --max-model-len %d gives them the "
        "rotation that the checkpoint was trained with",
        trained, max_len, trained,
    )  # fmt: skip
    return {"rope_type": "ntk_alpha", "alpha": 2 ** math.ceil(math.log2(max_len / trained) + 1) - 1}
