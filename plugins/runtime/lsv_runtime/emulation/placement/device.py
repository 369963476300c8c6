"""The emulated device as its fakes use it: memory that is counted, copies that are waited for, views for kernels."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lsv_runtime.emulation.placement.library import DEVICE_TYPE, load

DEVICES = 16
Result = TypeVar("Result")


_LOCK = threading.Lock()


class Placement:
    """The emulated devices of this process; ``index`` is the number of one of ``DEVICES``.

    A tensor of theirs lies in the host's memory and is computed on at once. What would fail on a card fails: mixing it
    with tensors of the host, reading it there without a copy. A copy to pinned memory that nobody waits for leaves
    garbage there until somebody waits, and writing to pinned memory under a copy from it is an error then.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def torch_device(self, index: int) -> torch.device:
        return torch.device(DEVICE_TYPE, index)

    def set_device(self, index: int) -> None:
        self._library.lsv_emulated_set_device(index)

    def held(self, index: int) -> int:
        """Bytes of the device's memory that tensors hold."""
        return int(self._library.lsv_emulated_held(index))

    def peak(self, index: int) -> int:
        """The most bytes held since ``reset_peak``."""
        return int(self._library.lsv_emulated_peak(index))

    def reset_peak(self, index: int) -> None:
        self._library.lsv_emulated_reset_peak(index)

    @property
    def waits(self) -> int:
        """How often the host has waited for a device, or for a copy from memory that is not pinned."""
        return int(self._library.lsv_emulated_waits())

    @property
    def pinned_allocations(self) -> int:
        """How often pinned memory of the host has been asked for."""
        return int(self._library.lsv_emulated_pinned_allocations())

    def mark(self) -> int:
        """A place in the order of copies beside other work, for ``finish``: how many there have been."""
        return int(self._library.lsv_emulated_mark())

    def finish(self, mark: int | None = None) -> None:
        """Wait for the copies up to a mark, or for all. Raises ``RuntimeError`` where memory changed under one."""
        if self._library.lsv_emulated_finish((1 << 63) - 1 if mark is None else mark):
            raise RuntimeError("pinned memory was written to before its copy to the device was waited for")


def placement() -> Placement | None:
    """None where the emulated device can't be compiled: tensors of devices lie on the host then."""
    with _LOCK:  # ranks may be threads
        return _place()


@cache
def _place() -> Placement | None:
    library = load()
    if library is None:
        return None
    torch._register_device_module(DEVICE_TYPE, _module())  # type: ignore[no-untyped-call]
    return Placement(library)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a device's tensor as a kernel of that device sees it. Raises ``RuntimeError`` for a host tensor."""
    return torch.ops.lsv_emulated.on_host(tensor)  # type: ignore[no-any-return]


def on_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor that a kernel of device ``index`` has made."""
    return torch.ops.lsv_emulated.on_device(tensor, index)  # type: ignore[no-any-return]


def as_kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """``function`` as a kernel of the emulated devices: it gets their tensors as the memory they are in, and its own
    tensors are theirs. Beside these a tensor of the host is refused, as a kernel can't reach it; with such tensors
    alone, or where torch compiles it, it is ``function``.
    """

    @wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Result:
        if torch.compiler.is_compiling() or not any(map(_is_placed, tree_leaves((args, kwargs)))):
            return function(*args, **kwargs)
        seen: dict[int, torch.Tensor] = {}
        index = -1

        def lower(value: Any) -> Any:
            nonlocal index
            if not isinstance(value, torch.Tensor):
                return value
            host = on_host(value)
            index = value.device.index
            seen[host.data_ptr()] = value
            return host

        def lift(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or _is_placed(value):
                return value
            own = seen.get(value.data_ptr())
            return own if own is not None and own.shape == value.shape else on_device(value, index)

        args, kwargs = tree_map(lower, args), tree_map(lower, kwargs)
        return tree_map(lift, function(*args, **kwargs))  # type: ignore[no-any-return]

    return launch


def _is_placed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def _module() -> ModuleType:
    """What torch asks of a kind of device's module."""
    found = ModuleType(f"torch.{DEVICE_TYPE}")
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "_is_in_bad_fork": False, "device_count": DEVICES,
        "current_device": 0, "manual_seed_all": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(found, name, lambda *_, answer=answer: answer)
    return found
