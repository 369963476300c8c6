"""LFM3: LFM2 with norms behind its layers too, windows in some of them, and attention whose heads are gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_models.recurrent.lfm.lfm2 import Lfm2
from lsv_runtime import gates
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


class HeadGatedAttention(Attention):
    """Attention whose heads are weighed by a sigmoid of what the layer is given."""

    variation: ClassVar[str] = "head_gated"

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        self.gate = Column.even(w, ("gate_proj",), c.hidden_size, c.heads)

    def project(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return super().project(attended * gates.sigmoid(self.gate(x))[..., None], x)


class Lfm3(Lfm2):
    kinds: ClassVar[Mapping[str, str]] = {**Lfm2.kinds, "sliding_attention": "attention"}
    common = {"windows": True, "rotary_fraction": 1.0}
    width = 7

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        kinds = config.get("layer_types") or _make_kinds(Keys(config).layers("num_hidden_layers"))
        super().__init__(w, {**config, "layer_types": kinds}, max_len)

    def read_keys(self, config: Mapping[str, Any]) -> Keys:
        windows = ["full_attention" if kind == "conv" else kind for kind in config["layer_types"]]
        ropes = config.get("rope_parameters") or _ROPES
        given = {"sliding_window": 256, **config, "layer_types": windows, "rope_parameters": ropes}
        keys = super().read_keys(given)
        keys.pass_over("partial_rotary_factor")  # the rules of single kinds of layers have it
        return keys

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.inner = c.intermediate_size
        self.gated = keys.take("use_attention_gate", bool, True)
        if keys.take("use_sandwich_norm", bool, True):
            self.norms: Mapping[str, str] = {
                **Lfm2.norms, "after_mixer": "post_operator_norm", "after_mlp": "post_ffn_norm",
            }  # fmt: skip

    def make_attention(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> Attention:
        return (HeadGatedAttention if self.gated else Attention)(w, c, layer, rope, qk_norm=True)

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int) -> nn.Module:
        return GatedMLP(w, c.hidden_size, self.inner, "silu")


def _make_kinds(layers: int) -> list[str]:
    """The kinds of layers where config.json has none: attention in every other one, with a window in half of these."""
    period = ("sliding_attention", "conv", "full_attention", "conv")
    return ["conv", *(period[layer % 4] for layer in range(1, layers))]
