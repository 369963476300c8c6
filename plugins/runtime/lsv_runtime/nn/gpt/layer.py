"""Layers of GPT-like decoders: x [T, hidden] -> [T, hidden]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from lsv_runtime.nn.gpt.attention import GptAttention
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.mlp import make_mlp
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


class GptLayer(nn.Module):
    """Attention, then the MLP; each gets a normed input and adds to it."""

    def __init__(self, w: Weights, c: GptConfig, form: Form, layer: int, rope: Rope | None) -> None:
        super().__init__()
        self.before_attn = form.make_norm(w / form.before_attn, c.hidden_size, c.norm_eps)
        self.attn = GptAttention(w / form.attn, c, form, layer, None if layer in c.unrotated else rope)
        self.before_mlp = form.make_norm(w / form.before_mlp, c.hidden_size, c.norm_eps) if form.before_mlp else None
        place = w / form.mlp if form.mlp else w
        self.mlp = make_mlp(place, form.mlp_names, c.hidden_size, c.intermediate_size, c.activation, bias=form.mlp_bias)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[misc, no-any-return]


class ParallelLayer(GptLayer):
    """Attention beside the MLP, whose input is normed on its own or is that of attention."""

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        normed = self.before_attn(x)
        read = normed if self.before_mlp is None else self.before_mlp(x)
        return x + self.attn(normed, step) + self.mlp(read)  # type: ignore[no-any-return]


class NormedLayer(GptLayer):
    """Attention, then the MLP; each adds to its input, and the sum is normed, as in the first transformer."""

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = self.before_attn(x + self.attn(x, step))
        return self.before_mlp(x + self.mlp(x))  # type: ignore[misc, no-any-return]


LAYERS: Mapping[str, type[GptLayer]] = {"sequential": GptLayer, "parallel": ParallelLayer, "normed": NormedLayer}
