"""The way of weights to a device with memory of its own: through pinned memory, beside the reading of the next ones."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lsv_runtime.devices.device import Device

BYTES = 16 << 20
"""Pinned memory of each thread that copies."""
_ALIGNMENT = 64


class Staging:
    """Copies host tensors to a device. Those of a thread go through memory of its own, which it fills again once the
    device has fetched what is there; ``Device.synchronize`` ends the last ones.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._own = _Memory()

    def copy_to(self, place: torch.Tensor, values: torch.Tensor) -> None:
        """``place.copy_(values)``, still under way when it returns. What is too large for the memory is copied at once.

        ``place`` lies on the device, ``values`` on the host; they may differ in dtype. A single value fills a place.
        """
        size = math.prod(place.shape) * place.itemsize
        if size > BYTES:
            place.copy_(values)
            return
        staged = self._take(size).view(place.dtype).view(place.shape)
        staged.copy_(values)
        place.copy_(staged, non_blocking=True)

    def _take(self, size: int) -> torch.Tensor:
        own = self._own
        if own.used + size > BYTES:
            self._device.synchronize()
            own.used = 0
        first, own.used = own.used, own.used + -(-size // _ALIGNMENT) * _ALIGNMENT
        return own.memory[first : first + size]


class _Memory(threading.local):
    """A thread's."""

    def __init__(self) -> None:
        self.memory = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
        self.used = 0
