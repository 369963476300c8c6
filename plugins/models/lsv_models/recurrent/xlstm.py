"""xLSTM: layers with a matrix memory whose gates are exponential, and gated MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_models.recurrent.hybrid import HybridLayer
from lsv_models.recurrent.stack import Names, Stack
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.recurrent.mlstm import MatrixMemory
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Part, Weights

NORMS = {"before_mixer": "norm_mlstm", "before_mlp": "norm_ffn"}
_NAMES = {"num_attention_heads": "num_heads", "rms_norm_eps": "norm_eps"}
"""What config.json calls common keys."""
_UNUSED = (
    "embedding_dim", "ffn_proj_factor", "ffn_round_up_to_multiple_of", "num_blocks", "norm_reduction_force_float32",
    "chunkwise_kernel", "sequence_kernel", "step_kernel", "mode", "chunk_size", "return_last_states",
    "autocast_kernel_dtype", "inference_state_dtype", "max_inference_chunksize", "num_attention_heads",
)  # fmt: skip


class HeadNorm(nn.Module):
    """Layer normalisation of each head, with a weight: x [T, heads, dim] -> [T, heads * dim]."""

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = w.take("weight", (size,)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], None, None, self.eps).flatten(1) * self.weight


class MatrixMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]. ``fused`` projections are stored as one tensor, and gates as another."""

    def __init__(
        self, w: Weights, c: DecoderConfig, keys: tuple[int, int], index: int, *, fused: bool, cap: float, eps: float
    ) -> None:
        """``keys`` are the features of all heads' keys and of their values."""
        super().__init__()
        self.heads, self.cap = c.heads, cap
        self.sizes = (keys[0], keys[0], keys[1], keys[1])
        names = ("q", "k", "v", "ogate_preact")
        total, gates = sum(self.sizes), ("igate_preact", "fgate_preact")
        parts = [Part(name, size, 0, size) for name, size in zip(names, self.sizes, strict=True)]
        self.project = Column(w, [Part("qkv_opreact", total, 0, total)] if fused else parts, c.hidden_size)
        self.gates = (
            Column.even(w, ("ifgate_preact",), c.hidden_size, 2 * c.heads, bias=True)
            if fused
            else Column.even(w, gates, c.hidden_size, c.heads, bias=True)
        )
        self.scan = MatrixMemory(c.heads, keys[0] // c.heads, keys[1] // c.heads, eps)
        self.cache = StateCache(w, index, (self.scan.part,))
        self.norm = HeadNorm(w / "multihead_norm", keys[1], c.norm_eps)
        self.out = Row(w, "out_proj", keys[1], c.hidden_size, reads=(0, keys[1]))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        q, k, v, gate = self.project(x).split(self.sizes, dim=-1)
        gain, keep = (self.cap * torch.tanh(self.gates(x) / self.cap)).chunk(2, dim=-1)
        y = self.scan(q, k, v, gain, keep, self.cache.of(step)).to(x.dtype)
        return self.out(torch.sigmoid(gate) * self.norm(y.unflatten(-1, (self.heads, -1))))  # type: ignore[no-any-return]


class XLSTM(Stack):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = _read_keys(config)
        keys.skip(*_UNUSED)
        keys.agree("use_bias", False)
        keys.agree("add_out_norm", True)
        c = DecoderConfig.read(keys)
        hidden, inner = c.hidden_size, c.intermediate_size
        widths = (
            int(hidden * keys.take("qk_dim_factor", float, 0.5)),
            int(hidden * keys.take("v_dim_factor", float, 1.0)),
        )
        fused = keys.take("weight_mode", str, "single") == "fused"
        if not fused:
            keys.agree("weight_mode", "single")
        cap, eps = keys.take("gate_soft_cap", float, 15.0), keys.take("eps", float, 1e-6)
        logits = keys.take("output_logit_soft_cap", float, 30.0)
        keys.finish("xLSTM")
        names = ("proj_up_gate_z",) * 2 if fused else ("proj_up_gate", "proj_up")

        def layer(i: int) -> HybridLayer:
            place = w / "backbone" / "blocks" / i
            mixer = MatrixMixer(place.replicated() / "mlstm_layer", c, widths, i, fused=fused, cap=cap, eps=eps)
            mlp = GatedMLP(place / "ffn", hidden, inner, "silu", names=(*names, "proj_down"))
            return HybridLayer(place, c, mixer, mlp, norms=NORMS)

        super().__init__(
            w, (c.vocab_size, hidden), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names("backbone.embeddings", "backbone.out_norm"),
        )  # fmt: skip
        self.head = ScaledHead(self.head, 1.0, logits)


def _read_keys(config: Mapping[str, Any]) -> Keys:
    """config.json with the numbers that it has under two names or leaves to be computed."""
    given = Keys(config)
    hidden = given.count("hidden_size", given.maybe("embedding_dim", int))
    multiple = given.count("ffn_round_up_to_multiple_of", 64)
    inner = -(-int(hidden * given.take("ffn_proj_factor", float, 2.667)) // multiple) * multiple
    layers = given.layers("num_hidden_layers", given.maybe("num_blocks", int))
    return Keys({**config, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}, _NAMES)
