"""Logs the device memory, host memory and time of each stage of a start."""

from __future__ import annotations

import logging
import time

from lsv.devices.usage import Usage, host_usage
from lsv.platform import Device

log = logging.getLogger(__name__)

_SHORT = 0.1
"""Seconds. A shorter stage that took no memory is not worth logging for users."""


class Stages:
    """Logs each loading stage. Memory allocated between two logs counts towards the later stage."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = self._look()

    def tell(self, stage: str) -> None:
        """End a stage and begin the next one. A very short stage is only logged at level debug."""
        began, device, host = self._before
        now, device_now, host_now = self._before = self._look()
        level = logging.INFO if now - began >= _SHORT or device_now.moved_since(device) else logging.DEBUG
        log.log(
            level, "%s %s and %s in %.2f seconds",
            stage, device_now.since(device, "device"), host_now.since(host, "host"), now - began,
        )  # fmt: skip

    def _look(self) -> tuple[float, Usage, Usage]:
        """The time, and both memories after all queued work."""
        self._device.synchronize()
        memory = self._device.memory()
        return time.monotonic(), Usage(memory.total - memory.free, memory.total), host_usage()
