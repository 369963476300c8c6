"""The model around a stack of layers of which some or all are recurrent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from lsv_models.sparse.decoder import STACKED
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

MIXTRAL = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)
"""Mixtral's names of experts, and what they are here."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where checkpoints have the parts of the model."""

    embed: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"


class Stack(AttentionModel):
    """An embedding, layers, a norm and a head. ``tied`` shares the embedding's weight with the head; layers that are
    ``wide`` give each other float32.
    """

    staged = True
    ignores: tuple[str, ...] = (r"(^|\.)rotary_emb\.inv_freq$",)
    stacks = STACKED
    names: ClassVar[Sequence[tuple[str, str]]] = ()
    """Regular expressions of parts of the family's tensor names, and what they are here."""

    make_norm: ClassVar[Callable[[Weights, int, float], nn.Module]] = RMSNorm
    """The norm before the head."""

    def __init__(
        self,
        w: Weights,
        sizes: tuple[int, int],
        layers: Iterable[nn.Module],
        *,
        eps: float,
        tied: bool,
        names: Names = Names(),
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.vocab_size, hidden = sizes
        self.stream = (hidden, torch.float32) if wide else None
        self.embed = Embed(w / names.embed, self.vocab_size, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = ModelTyped(type(self).make_norm(w / names.norm, hidden, eps))
        self.head = Head(w / names.head, self.vocab_size, hidden, tied=self.embed if tied else None)

    def rename(self, name: str) -> str:
        return substitute(super().rename(name), self.names)


class ModelTyped(nn.Module):
    """A norm whose input may be in float32 and whose output is in the model's dtype."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm
        self.dtype = model_dtype(norm.spec().dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.to(self.dtype))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A module whose output is multiplied by a number: an embedding or a head."""

    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        self.module, self.factor = module, factor

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        y: torch.Tensor = self.module(x, step)
        return y if self.factor == 1.0 else y * self.factor


class RecurrentLayer(nn.Module):
    """``x + mixer(norm(x))``: x [T, hidden] -> [T, hidden]; ``wide`` keeps x in float32."""

    def __init__(self, norm: RMSNorm, mixer: nn.Module, *, wide: bool) -> None:
        super().__init__()
        self.norm, self.mixer, self.wide = ModelTyped(norm), mixer, wide

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        y = self.mixer(self.norm(x), step)
        return (x.float() if self.wide else x) + y  # type: ignore[no-any-return]
