"""A layer's weights in pinned memory of the host, and views of one place on the device instead of their own memory."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lsv_base.errors import ConfigError
from lsv_runtime.worker.load.parked import bytes_of

_ALIGNMENT = 256
"""Of storages on a device: no kernel asks for more, and every dtype's size divides it."""
_BLOCK = 64 << 20
"""Bytes that are pinned at a time: torch rounds what it pins up to a power of two, so that a layer alone might take
almost twice its size.
"""
_LEAVES = (str, bytes, int, float, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """What a layer has for itself: weights of its modules, those excepted that others hold as well."""

    modules: tuple[nn.Module, ...]
    """The layer and those below it that are nobody else's."""
    shared: frozenset[tuple[int, str]] = frozenset()
    """Parameters of theirs that are tied to others, by the identity of the module and the name."""

    def tensors(self) -> Iterator[Tensor]:
        """The parameters and buffers that are there now."""
        for module in self.modules:
            for name, parameter in module.named_parameters(recurse=False):
                if (id(module), name) not in self.shared:
                    yield parameter
            yield from module.buffers(recurse=False)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class PinnedMemory:
    """Memory of the host that a device can fetch from beside its work, given out without gaps."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, size: int) -> list[Tensor]:
        """``size`` bytes in as many pieces as blocks they lie in. Raises ``ConfigError`` where there are no more."""
        pieces = []
        while size:
            if self._used == len(self._block):
                self._block, self._used = _pin(_BLOCK), 0
            part = min(size, len(self._block) - self._used)
            pieces.append(self._block[self._used : self._used + part])
            self._used, size = self._used + part, size - part
        return pieces


def _pin(size: int) -> Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as cause:
        raise ConfigError(
            f"cpu_offload_gb: the host gives no more pinned memory ({str(cause).splitlines()[0]}): lower it",
            param="cpu_offload_gb",
        ) from cause


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor, and how it lies in the bytes of its layer."""

    tensor: Tensor
    first: int
    """The byte at which its storage begins."""
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    """Elements from there on."""


class HostedLayer:
    """The weights of a layer, moved to the host. Until ``place`` the layer can't be computed.

    All tensors over them move along, kernels' own views included, and stay the same objects. What others hold as well
    stays on the device.
    """

    def __init__(self, layer: nn.Module, own: OwnWeights, memory: PinnedMemory, device: torch.device) -> None:
        self.size = 0
        """Bytes, with the gaps that align them."""
        self._views: list[_View] = []
        storages = _storages(layer, own, device)
        starts = []
        for storage, _ in storages:
            starts.append(self.size)
            self.size += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        self._pieces = memory.take(self.size)
        for first, (storage, tensors) in zip(starts, storages, strict=True):
            self._store(first, bytes_of(storage))
            for tensor in tensors:
                self._views.append(_View(tensor, first, tensor.shape, tensor.stride(), int(tensor.storage_offset())))
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """What has been moved."""
        return [view.tensor for view in self._views]

    def place(self, room: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Let all tensors be views of ``room``, uint8 [at least size] on the device. The copies that fill it: from the
        host's memory into parts of it.
        """
        for view in self._views:
            typed = room[: len(room) // _ALIGNMENT * _ALIGNMENT].view(view.tensor.dtype)
            offset = typed.storage_offset() + view.first // typed.itemsize + view.offset
            view.tensor.data = typed.as_strided(view.shape, view.stride, offset)
        copies, first = [], 0
        for piece in self._pieces:
            copies.append((room[first : first + len(piece)], piece))
            first += len(piece)
        return copies

    def _store(self, first: int, content: Tensor) -> None:
        """Copy bytes of the device to where those of the layer from ``first`` on lie."""
        begin = 0
        for piece in self._pieces:
            start, stop = max(first, begin), min(first + len(content), begin + len(piece))
            if start < stop:
                piece[start - begin : stop - begin].copy_(content[start - first : stop - first])
            begin += len(piece)


def _storages(
    layer: nn.Module, own: OwnWeights, device: torch.device
) -> list[tuple[torch.UntypedStorage, list[Tensor]]]:
    """The device's memory of a layer's own weights that nothing but the layer holds, with all tensors over it."""
    found = (tensor.untyped_storage() for tensor in own.tensors() if tensor.device == device)
    storages = {storage._cdata: storage for storage in found}
    over = defaultdict[int, list[Tensor]](list)
    for tensor in _reach(layer):
        if tensor.device == device:
            over[tensor.untyped_storage()._cdata].append(tensor)
    alone = ((storage, over[storage._cdata]) for storage in storages.values() if storage.nbytes())
    return [(storage, held) for storage, held in alone if _holders(storage) == len(held) + 1]  # this one is the last


def _holders(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


def _reach(root: object) -> Iterator[Tensor]:
    """All tensors that an object, its attributes and what is in them hold, each once."""
    seen, waiting = set[int](), [root]
    while waiting:
        held = waiting.pop()
        if isinstance(held, _LEAVES) or id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, Mapping):
            waiting.extend(held.values())
        elif isinstance(held, list | tuple | set | frozenset):
            waiting.extend(held)
        elif isinstance(held, MethodType):
            waiting.append(held.__self__)
        elif isinstance(held, functools.partial):
            waiting.extend((held.func, *held.args, *held.keywords.values()))
        else:
            waiting.extend(_attributes(held))


def _attributes(held: object) -> Iterator[Any]:
    yield from getattr(held, "__dict__", {}).values()
    for cls in type(held).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(held, name):
                yield getattr(held, name)
