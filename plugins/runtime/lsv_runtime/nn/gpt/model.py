"""A GPT-like decoder: a family says what it reads from config.json, and its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_runtime.nn.decoder import is_bare
from lsv_runtime.nn.embed import Embed, Head, Positions
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.layer import LAYERS
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_MASKS = r"\.(attn|attention)\.(masked_)?bias$|\.causal_mask$|rotary_emb\.inv_freq$"
"""Constants that checkpoints of the first versions hold."""


class AdaptedHead(nn.Module):
    """A head whose logits get a bias and are scaled."""

    def __init__(self, head: nn.Module, bias: nn.Parameter | None, scale: float) -> None:
        super().__init__()
        self.head, self.bias, self.scale = head, bias, scale

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.head(x, step)
        return (logits if self.bias is None else logits + self.bias) * self.scale


class Gpt(AttentionModel):
    """Embedding, layers, norm and head in a family's form.

    Raises ``CheckpointError`` for a config.json that it can't follow, and names the class in it.
    """

    staged = True
    form: ClassVar[Form]
    rotation: ClassVar[type[Rope]] = Rope
    ignores: tuple[str, ...] = (_MASKS,)

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        keys = Keys(config)
        c, form = self.read(keys)
        keys.finish(type(self).__name__)
        if is_bare(config) and not c.tied:
            c, form = replace(c, tied=True), replace(form, head_bias=False)
        self.build(w, c, form, max_len)

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        """The numbers of a config.json, and the form that it asks for."""
        raise NotImplementedError

    def build(self, w: Weights, c: GptConfig, form: Form, max_len: int) -> None:
        """Declare the weights."""
        place, size = w / form.place, c.embed_size or c.hidden_size
        self.vocab_size, self.embed_scale = c.vocab_size, c.embed_scale
        self.tokens = Embed(place / form.embed, c.vocab_size, size)
        self.places: Positions | None = None
        if form.positions is not None:
            learned, first = place / form.positions, form.first_position
            self.places = Positions(learned, c.positions, c.hidden_size, max_len, offset=first)
        self.embed_norm = form.make_norm(place / form.embed_norm, size, c.norm_eps) if form.embed_norm else None
        stack = place.transposed() / form.layers if form.transposed else place / form.layers
        layer, rope = LAYERS[form.residual], None if c.rope is None else self.rotation(w, c.rope, max_len)
        self.layers = nn.ModuleList(layer(stack / i, c, form, i, rope) for i in range(c.layers))
        self.norm = form.make_norm(place / form.norm, c.hidden_size, c.norm_eps) if form.norm else nn.Identity()
        tied = self.tokens if c.tied else None
        self.head: nn.Module = Head(w / form.head, c.vocab_size, size, tied=tied)
        if form.head_bias or c.logit_scale != 1.0:
            bias = (w / form.head).take("bias", (c.vocab_size,)) if form.head_bias else None
            self.head = AdaptedHead(self.head, bias, c.logit_scale)

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x: torch.Tensor = self.tokens(ids, step)
        if self.places is not None:
            x = x + self.places(step.positions[0])
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        return x if self.embed_norm is None else self.embed_norm(x)
