"""The way of a step's numbers to a device and back: through pinned memory that is kept from step to step.

Kernels are told a torch device and nothing else, so it is looked up by that: ``open_staging`` where a device is opened,
``close_staging`` where it is closed. For other devices, or one that pins no memory, a copy is what torch makes of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv_runtime.devices.device import Device, Event

_LAP = 1 << 20
"""Bytes in which numbers are laid one after the other before their copies are marked by an event."""
_LAPS = 4
"""So many before the first is used again: its copies have long been made by then."""
_ALIGNMENT = 64
_PAGE = 4096

Bytes = npt.NDArray[np.uint8]


class Ring:
    """Pinned memory from which a device fetches numbers. A lap is used again once the device is past its copies."""

    def __init__(self, mark: Callable[[], Event | None]) -> None:
        self._mark = mark
        self._memory: Bytes = torch.empty((_LAPS, _LAP), dtype=torch.uint8, pin_memory=True).numpy()
        self._lap = self._used = 0
        self._marks: list[Event | None] = [None] * _LAPS

    def take(self, size: int) -> Bytes:
        """``size`` bytes, of which one copy is made before the next are taken. At most ``_LAP``."""
        if self._used + size > _LAP:
            self._marks[self._lap] = self._mark()
            self._lap, self._used = (self._lap + 1) % _LAPS, 0
            earlier = self._marks[self._lap]
            if earlier is not None:
                earlier.synchronize()
        first, self._used = self._used, self._used + -(-size // _ALIGNMENT) * _ALIGNMENT
        return self._memory[self._lap, first : first + size]


class _Rings(threading.local):
    """Each thread has a ring of its own, made when it first sends."""

    ring: Ring | None = None


class Staging:
    """Pinned memory for what is sent to a device and for what comes back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rings = _Rings()
        self._free: dict[int, list[Tensor]] = {}

    def stage(self, values: npt.NDArray[Any]) -> Tensor:
        """``values`` in pinned memory, for one copy that is made before anything else is staged."""
        if values.nbytes > _LAP:
            return torch.from_numpy(values).pin_memory()
        rings = self._rings
        if rings.ring is None:
            rings.ring = Ring(self._device.event)
        place = rings.ring.take(values.nbytes).view(values.dtype).reshape(values.shape)
        np.copyto(place, values)
        return torch.from_numpy(place)

    def fetch(self, values: Tensor) -> Fetched:
        size = max(_PAGE, 1 << max(0, values.nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host = memory[: values.nbytes].view(values.dtype).view(values.shape)
        host.copy_(values, non_blocking=True)
        return Fetched(host, lambda: free.append(memory))


class Fetched:
    """Numbers on their way from a device."""

    def __init__(self, values: Tensor, give_back: Callable[[], None] | None = None) -> None:
        self._values, self._give_back = values, give_back

    def read(self) -> npt.NDArray[Any]:
        """Once, when the device is past an event that was recorded after they were asked for."""
        found: npt.NDArray[Any] = self._values.numpy(force=True)
        if self._give_back is not None:
            found = found.copy()
            self._give_back()
        return found


_open: dict[torch.device, Staging] = {}


def open_staging(device: Device) -> None:
    """Keep pinned memory for a device, if it has use for it."""
    if device.pinned:
        _open[device.torch_device] = Staging(device)


def close_staging(device: Device) -> None:
    """Give it back, unless the device has been opened again."""
    found = _open.get(device.torch_device)
    if found is not None and found._device is device:
        del _open[device.torch_device]


def send(values: npt.NDArray[Any], place: torch.device) -> Tensor:
    """``values`` on a device, without waiting for it; on the host a tensor that shares their memory."""
    return _stage(values, place).to(place, non_blocking=True)


def overwrite(tensor: Tensor, values: npt.NDArray[Any]) -> None:
    """Copy ``values`` into a tensor of their shape, without waiting for its device."""
    tensor.copy_(_stage(values, tensor.device), non_blocking=True)


def fetch(values: Tensor) -> Fetched:
    """Bring numbers to the host, without waiting for their device."""
    found = _open.get(values.device)
    return Fetched(values) if found is None else found.fetch(values)


def _stage(values: npt.NDArray[Any], place: torch.device) -> Tensor:
    found = _open.get(place)
    return torch.from_numpy(values) if found is None else found.stage(values)
