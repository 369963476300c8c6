"""What pooling requests get: the hidden states of their tokens, gathered step by step, and made into their vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from lsv.request.params import PoolingParams
from lsv.request.pooling import VECTORS, Pooler, PoolingKind

Step = Callable[[Tensor], Tensor]
"""[rows, features] -> [rows, features]."""


class Gathered:
    """What is kept of the states of one request's tokens until its prompt has been computed; float32."""

    def __init__(self, kind: PoolingKind) -> None:
        self.kind = kind
        self._parts: list[Tensor] = []
        self._count = 0

    def span(self, start: int, count: int, *, ends: bool) -> tuple[int, int] | None:
        """Which of a step's tokens ``start … start+count-1`` are needed, counted from ``start``; None for none."""
        if self.kind == "last":
            return (count - 1, count) if ends else None
        if self.kind == "cls":
            return (0, 1) if start == 0 else (count - 1, count) if ends else None
        return 0, count

    def add(self, states: Tensor, start: int) -> None:
        """Take the states [count, hidden] of the tokens from ``start`` on. Of a first token's, no others count."""
        states = states.float()
        self._count += len(states)
        if self.kind == "all":
            self._parts.append(states)
        elif not self._parts or self.kind == "last":
            self._parts = [self._fold(states, start)]
        elif self.kind == "max":
            self._parts = [torch.maximum(self._parts[0], self._fold(states, start))]
        elif self.kind != "cls":
            self._parts = [self._parts[0] + self._fold(states, start)]

    def _fold(self, states: Tensor, start: int) -> Tensor:
        if self.kind == "max":
            return states.amax(0)
        if self.kind == "weighted":
            places = torch.arange(start + 1, start + 1 + len(states), dtype=states.dtype, device=states.device)
            return (states * places[:, None]).sum(0)
        return states[0] if self.kind in ("cls", "last") else states.sum(0)

    def states(self) -> Tensor:
        """[1, hidden], or [tokens, hidden] where nothing is pooled."""
        whole = torch.cat([part[None] if part.ndim == 1 else part for part in self._parts])
        return whole / self._divisor() if self.kind in ("mean", "sqrt", "weighted") else whole

    def _divisor(self) -> float:
        count = float(self._count)
        return {"mean": count, "sqrt": math.sqrt(count)}.get(self.kind, count * (count + 1) / 2)


class Slot(Protocol):
    """A pooling request in the worker."""

    gathered: Gathered | None

    @property
    def begin(self) -> Any: ...


class Pool:
    """From gathered states to what requests get: the model's scores, or the checkpoint's dense layers; then scaled."""

    def __init__(self, pooler: Pooler = Pooler(), scorer: nn.Module | None = None, dense: Sequence[Step] = ()) -> None:  # noqa: B008 - a frozen record
        self._pooler, self._scorer, self._dense = pooler, scorer, tuple(dense)

    @torch.inference_mode()
    def __call__(self, slots: Sequence[Slot]) -> list[bytes | None]:
        """By slot, float32 little-endian: a vector, or one a token, one after the other; None for what is not finite.

        Requests that ask for the same are computed together.
        """
        found: list[bytes | None] = []
        for params, same in groupby(slots, lambda slot: slot.begin.pooling):
            gathered = [slot.gathered.states() for slot in same if slot.gathered is not None]
            vectors = self._finish(torch.cat(gathered), params).float().cpu()
            for vector in torch.split(vectors, [len(states) for states in gathered]):
                sound = bool(vector.isfinite().all())
                found.append(vector.numpy().astype("<f4").tobytes() if sound else None)
        return found

    def _finish(self, states: Tensor, params: PoolingParams) -> Tensor:
        if self._pooler.task in ("generate", "embed") or params.task in VECTORS:
            return self._vectors(states, params)
        assert self._scorer is not None, "a classifier has a scorer"
        scores: Tensor = self._scorer(states).float()
        activation = "none" if params.use_activation is False else self._pooler.activation
        if activation == "softmax":
            return scores.softmax(-1)
        return scores.sigmoid() if activation == "sigmoid" else scores

    def _vectors(self, states: Tensor, params: PoolingParams) -> Tensor:
        for layer in () if params.kind == "all" else self._dense:
            states = layer(states)
        if params.dimensions is not None:
            states = states[:, : params.dimensions]
        scaled = self._pooler.normalize if params.normalize is None else params.normalize
        return functional.normalize(states, dim=-1) if scaled else states
