"""A step as the model sees it: a frozen record of device tensors that is passed to every module's forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lsv.attention import AttentionBackend


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What an encoder made of media, for some tokens of a step."""

    places: torch.Tensor
    """int64 [M]: the indices of these tokens in the step."""
    rows: torch.Tensor
    """[M, hidden]: their embeddings."""


@dataclass(frozen=True, slots=True)
class Step:
    """The batch as T flat tokens of R rows."""

    ids: torch.Tensor
    """int64 [T]."""
    positions: torch.Tensor
    """int64 [axes, T]: 1 axis, or 3 with M-RoPE."""
    backend: AttentionBackend
    attention: tuple[Any, ...]
    """The backend's plan for each KV group."""
    cache: Any | None
    """The backend's cache; None attends within the step alone."""
    logits_rows: torch.Tensor
    """int64 [R']: the indices of the tokens that go through the head."""
    adapters: torch.Tensor | None = None
    """int32 [T], or None without adapters."""
    media: Embeddings | None = None
    """Embeddings that replace those of some tokens."""
    types: torch.Tensor | None = None
    """int64 [T]: 1 for the tokens of a row's second text; None where every row has one text."""
    taps: tuple[int, ...] = ()
    """Layers whose output is wanted."""
