"""An adapter's tensors, by the module they belong to, as PEFT stores them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from lsv.adapters.reading.messages import Digest, Layout, Module, Piece, Read, Reply, Stored
from lsv.adapters.reading.process import ask
from lsv.config import Confinement
from lsv_runtime.weights.finite import check_finite


@dataclass(frozen=True, slots=True)
class Pair:
    """What an adapter adds to a linear layer: ``x A^T B^T``, scaled. For an embedding, x is one-hot."""

    a: torch.Tensor
    """[rank, inputs]."""
    b: torch.Tensor
    """float32 [outputs, rank]: the scale is part of it."""
    magnitude: torch.Tensor | None = None
    """float32 [outputs]: the norms that the rows of the merged weight are scaled to (DoRA); None leaves them."""
    embeds: bool = False
    """Whether it was trained as an embedding's."""
    copy: torch.Tensor | None = None
    """A weight that replaces the module's own; ``a`` and ``b`` may then be empty."""
    base: tuple[int, ...] | None = None
    """The shape of the base weight, if PEFT stored the base weight too."""


class AdapterFiles(NamedTuple):
    """What an adapter's files hold."""

    pairs: dict[str, Pair]
    """By module name, as in transformers."""
    digest: bytes
    """The value of ``lsv.adapters.peft.digest``, computed after the files were read."""


def read_adapter(folder: Path, max_rank: int, mode: Confinement = "auto") -> AdapterFiles:
    """Read an adapter's files in a process confined by ``mode``.

    Raises ``CheckpointError`` if a file is missing or damaged, if the adapter uses an unsupported feature (the error
    names it), if its rank exceeds ``max_rank``, or if a tensor contradicts the configuration or is not finite.
    """
    assembly = _Assembly()
    ask(folder, Read(max_rank), assembly.take, mode)
    return AdapterFiles(assembly.pairs, assembly.digest)


class _Assembly:
    """Assembles pairs from the replies of the reading process."""

    def __init__(self) -> None:
        self.pairs: dict[str, Pair] = {}
        self.digest = b""
        self._modules: Iterator[None] = iter(())
        self._room = memoryview(b"")

    def take(self, reply: Reply) -> bool:
        """Use a reply; returns whether more replies follow."""
        match reply:
            case Layout(modules):
                self._modules = self._fill(modules)
                next(self._modules, None)
            case Piece(data):
                self._room[: len(data)] = data  # raises ValueError if the piece is longer than the room left
                self._room = self._room[len(data) :]
                if not self._room:
                    next(self._modules, None)
            case Digest(found):
                if self._room or next(self._modules, self) is not self:
                    raise ValueError("the data of a tensor is missing")
                self.digest = found
                return False
        return True

    def _fill(self, modules: tuple[Module, ...]) -> Iterator[None]:
        """Allocate each tensor in turn; resumed once the tensor is full."""
        for module in modules:
            tensors: dict[str, torch.Tensor] = {}
            for kind, stored in module.tensors.items():
                tensors[kind] = tensor = _make(stored)
                self._room = memoryview(tensor.flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]
                if self._room.nbytes:
                    yield
                check_finite(f"{module.name}.{kind}", tensor, tensor.dtype)
            self.pairs[module.name] = _join(module, tensors)


def _make(stored: Stored) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))


def _join(module: Module, tensors: dict[str, torch.Tensor]) -> Pair:
    copy = tensors.get("copy")
    embeds = "lora_embedding_A" in tensors
    names = ("lora_embedding_A", "lora_embedding_B") if embeds else ("lora_A", "lora_B")
    a, b = (tensors.get(name) for name in names)
    if a is None or b is None:
        nothing = torch.empty((0, 0))
        return Pair(nothing, nothing, copy=copy, base=module.base)
    magnitude = tensors.get("lora_magnitude_vector")
    return Pair(
        a, b.float() * module.scale, None if magnitude is None else magnitude.float(), embeds, copy, module.base
    )
