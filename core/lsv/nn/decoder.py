"""Decoder-only transformers: the block, and the model around a stack of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from lsv.nn.attention import Attention
from lsv.nn.config import DecoderConfig
from lsv.nn.embed import Embed, Head
from lsv.nn.model import AttentionModel
from lsv.nn.norm import RMSNorm
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv.weights.quantizer import joint_format


class DecoderLayer(Bindable):
    """A pre-norm block: ``x + attn(norm(x))``, then ``x + mlp(norm(x))``."""

    op: ClassVar[str] = "layer"

    def __init__(self, before_attn: RMSNorm, attn: Attention, before_mlp: RMSNorm, mlp: Bindable) -> None:
        super().__init__()
        self.before_attn, self.attn = before_attn, attn
        self.before_mlp, self.mlp = before_mlp, mlp

    def spec(self) -> OpSpec:
        attn, mlp = self.attn.spec(), self.mlp.spec()
        format = joint_format(attn.format, mlp.format)
        op = attn.op.replace(Attention.op, self.op, 1)
        return OpSpec(op, attn.dtype, format, {**mlp.shape, **attn.shape}, attn.flags | mlp.flags | {mlp.op})

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Decoder(AttentionModel):
    """A decoder-only transformer with the tensor names that Llama made common."""

    ignores: tuple[str, ...] = (r"(^|\.)rotary_emb\.inv_freq$",)

    def __init__(self, w: Weights, c: DecoderConfig, layers: Iterable[DecoderLayer]) -> None:
        super().__init__()
        self.vocab_size = c.vocab_size
        self.embed = Embed(w / "model" / "embed_tokens", c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(w / "model" / "norm", c.hidden_size, c.norm_eps)
        self.head = Head(w / "lm_head", c.vocab_size, c.hidden_size, tied=self.embed if c.tied else None)
        if c.tied:
            self.ignores = (*self.ignores, r"^lm_head\.weight$")
