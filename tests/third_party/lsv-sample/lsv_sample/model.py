"""Sample: a Llama whose checkpoints call themselves ``SampleForCausalLM``."""

from __future__ import annotations

import torch

from lsv_runtime.nn.decoder import DecoderLayer, DenseDecoder
from lsv_runtime.nn.step import Step


class SampleLayer(DecoderLayer):
    op = "layer"

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Sample(DenseDecoder):
    layer = SampleLayer
