"""What pooling requests get: the hidden states of their tokens, gathered step by step, and made into their vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from lsv.errors import CheckpointError
from lsv.request.params import PoolingParams
from lsv.request.pooling import Pooler, PoolingKind
from lsv.resolve.locate import read_config
from lsv.weights.checkpoint import SafetensorsSource
from lsv.weights.pickled import PickledSource, pickled_files

Step = Callable[[Tensor], Tensor]
"""[rows, features] -> [rows, features]."""

_ACTIVATIONS: dict[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": functional.silu,
}


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
        whole = torch.cat([part.unflatten(-1, (1, -1)) if part.ndim == 1 else part for part in self._parts])
        return whole / self._divisor() if self.kind in ("mean", "sqrt", "weighted") else whole

    def _divisor(self) -> float:
        count = self._count
        return {"mean": count, "sqrt": count**0.5}.get(self.kind, count * (count + 1) / 2)


class Slot(Protocol):
    """A pooling request in the worker."""

    gathered: Gathered | None

    @property
    def begin(self) -> Any: ...


class Pool:
    """From gathered states to what requests get: the model's scores, or the checkpoint's dense layers; then scaled."""

    def __init__(self, pooler: Pooler = Pooler(), scorer: nn.Module | None = None, dense: Sequence[Step] = ()) -> None:  # noqa: B008 - a frozen record
        self._pooler, self._scorer, self._dense = pooler, scorer, tuple(dense)

    @classmethod
    def load(cls, pooler: Pooler, folder: str, scorer: nn.Module | None, device: torch.device) -> Pool:
        """With the dense layers that lie beside a checkpoint. Raises ``CheckpointError``."""
        return cls(pooler, scorer, [load_dense(Path(folder) / name, device) for name in pooler.dense])

    @torch.inference_mode()
    def __call__(self, slots: Sequence[Slot]) -> list[bytes | None]:
        """By slot, float32 little-endian: a vector, or one a token, one after the other; None for what is not finite.

        Requests that ask for the same are computed together.
        """
        found: list[bytes | None] = []
        for params, same in groupby(slots, lambda slot: slot.begin.pooling):
            gathered = [slot.gathered.states() for slot in same if slot.gathered is not None]
            vectors = self._finish(torch.cat(gathered), params).float().cpu()
            for vector in vectors.split([len(states) for states in gathered]):
                sound = bool(vector.isfinite().all())
                found.append(vector.numpy().astype("<f4").tobytes() if sound else None)
        return found

    def _finish(self, states: Tensor, params: PoolingParams) -> Tensor:
        if self._pooler.task in ("generate", "embed"):
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


def load_dense(folder: Path, device: torch.device) -> Step:
    """A ``Dense`` module of sentence-transformers, in float32. Raises ``CheckpointError``."""
    config = read_config(folder, {})
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"{folder}/config.json: activation_function {name:.100} is not one of {known}")
    pickled = not any(folder.glob("*.safetensors")) and pickled_files(folder)
    source = PickledSource(folder) if pickled else SafetensorsSource(folder)
    try:
        weight, bias = (
            source.read(key, 0, info.shape[0]).float().clone().to(device) if info else None
            for key in ("linear.weight", "linear.bias")
            for info in (source.tensors().get(key),)
        )
    finally:
        source.close()
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{folder} has no linear.weight, which a dense layer is made of")
    activate = _ACTIVATIONS[name]
    return lambda x: activate(functional.linear(x.float(), weight, bias))
