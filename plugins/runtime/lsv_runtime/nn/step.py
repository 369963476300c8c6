"""A step as the model sees it: a frozen record of device tensors that is passed to every module's forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lsv_runtime.attention import AttentionBackend


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What an encoder made of media, for some tokens of a step."""

    places: torch.Tensor
    """int64 [M]: the indices of these tokens in the step."""
    rows: torch.Tensor
    """[M, hidden]: their embeddings."""
    deeper: tuple[torch.Tensor, ...] = ()
    """[M, hidden] each: what is added to the same tokens behind the first layer, behind the second, and so on."""

    @classmethod
    def cut(cls, places: torch.Tensor, rows: torch.Tensor, deeper: int) -> Embeddings:
        """Of what an encoder makes, whose rows [M, (1 + deeper) * hidden] hold side by side what goes ``deeper``."""
        first, *others = rows.chunk(1 + deeper, dim=1)
        return cls(places, first, tuple(others))

    def deepen(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """The states [T, hidden] of all tokens behind a layer, with what is added there."""
        return x.index_add(0, self.places, self.deeper[layer].to(x.dtype))


@dataclass(frozen=True, slots=True)
class Items:
    """The tokens of a step that see one another, by items: those of an image, or of a prompt."""

    places: torch.Tensor
    """int64 [S]: their indices in the step, item by item."""
    attention: tuple[Any, ...]
    """The backend's plan for them in each KV group: a row for each item."""


@dataclass(frozen=True, slots=True)
class TokenAdapters:
    """Through which adapters the tokens of a step go."""

    slots: torch.Tensor
    """int32 [T]: the slot of each token's adapter, -1 for none."""
    tiles: torch.Tensor
    """int64 [N, places]: the tokens of one adapter in as many places each, T where there are no more."""
    tile_slots: torch.Tensor
    """int64 [N]: the slot of each tile's adapter."""


@dataclass(slots=True)
class Taps:
    """States between layers that somebody else reads, of all tokens of a step."""

    layers: tuple[int, ...]
    """After how many layers they are read, in ascending order; those behind the last one are normed."""
    states: torch.Tensor | None = None
    """[T, len(layers) * hidden]: side by side. A step that is captured leaves them in the same memory every time."""

    def keep(self, place: int, x: torch.Tensor) -> None:
        """The states [T, hidden] of ``layers[place]``."""
        if self.states is None:
            self.states = x.new_empty(len(x), len(self.layers) * x.shape[1])
        self.states[:, place * x.shape[1] : (place + 1) * x.shape[1]] = x


@dataclass(frozen=True, slots=True)
class Step:
    """The batch as T flat tokens of R rows."""

    ids: torch.Tensor
    """int64 [T]."""
    positions: torch.Tensor
    """int64 [axes, T]: 1 axis, or as many as ``Model.axes`` says."""
    backend: AttentionBackend
    attention: tuple[Any, ...]
    """The backend's plan for each KV group."""
    cache: Any | None
    """The backend's cache; None attends within the step alone."""
    logits_rows: torch.Tensor
    """int64 [R']: the indices of the tokens that go through the head."""
    adapters: TokenAdapters | None = None
    """None where no token goes through one."""
    media: Embeddings | None = None
    """Embeddings that replace those of some tokens."""
    items: Items | None = None
    """None where no token sees a later one."""
    received: torch.Tensor | None = None
    """[T, hidden]: what the layers of other ranks have made of the tokens; None where the model begins with them."""
    types: torch.Tensor | None = None
    """int64 [T]: 1 for the tokens of a row's second text; None where every row has one text."""
    taps: Taps | None = None
    """None where nobody reads states between layers."""
    sound: torch.Tensor | None = None
    """bool [T]: the step writes here which tokens have finite states after the last layer; None to skip the check."""
