"""One step as the model sees it: a frozen record of device tensors, passed to every module's forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lsv.attention import AttentionBackend


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What an encoder made of media: ``rows`` [M, hidden] for the tokens at ``places`` int64 [M]."""

    places: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """The batch as T flat tokens of R rows.

    ids int64 [T] · positions int64 [A, T] (A = 1; M-RoPE 3) · attention: the backend's plan per KV group ·
    cache: the backend's cache, None attends within the step alone · logits_rows int64 [R'] indices of the tokens
    that go through the head · adapters int32 [T] or None · media: embeddings in the places of some tokens ·
    taps: layers whose output is wanted.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    backend: AttentionBackend
    attention: tuple[Any, ...]
    cache: Any | None
    logits_rows: torch.Tensor
    adapters: torch.Tensor | None = None
    media: Embeddings | None = None
    taps: tuple[int, ...] = ()
