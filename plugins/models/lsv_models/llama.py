"""Llama and what shares its form (Yi, SmolLM, TinyLlama …): the block that most families vary."""

from __future__ import annotations

import torch

from lsv_runtime.nn.decoder import DecoderLayer, DenseDecoder
from lsv_runtime.nn.step import Step


class LlamaLayer(DecoderLayer):
    """Attention, then a gated MLP; each gets a normed input and adds to it: x [T, hidden] -> [T, hidden]."""

    op = "layer"

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Llama(DenseDecoder):
    layer = LlamaLayer
