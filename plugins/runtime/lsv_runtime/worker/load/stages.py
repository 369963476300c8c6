"""Logs the device memory, host memory and time of each stage of a start."""

from __future__ import annotations

import logging
import time

from lsv_base.processes.usage import Usage, host_usage
from lsv_runtime.devices.device import Device

log = logging.getLogger(__name__)

_SHORT = 0.1
"""Seconds. A shorter stage that took no memory is not worth logging for users."""


class Stages:
    """Logs each loading stage. Memory allocated between two logs counts towards the later stage.

    Device memory is what the whole device has in use, host memory what this process has. A device that computes in the
    host's memory has no figure of its own.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = self._look()

    def tell(self, stage: str) -> None:
        """End a stage and begin the next one. A very short stage is only logged at level debug."""
        began, before = self._before
        ended, after = self._before = self._look()
        moved = "device" in after and after["device"].moved_since(before["device"])
        changes = " and ".join(used.since(before[kind], kind) for kind, used in after.items())
        level = logging.INFO if ended - began >= _SHORT or moved else logging.DEBUG
        log.log(level, "%s %s in %.2f seconds", stage, changes, ended - began)

    def _look(self) -> tuple[float, dict[str, Usage]]:
        """The time, and the memory of each kind that is in use after all queued work."""
        self._device.synchronize()
        memory = self._device.memory()
        used = {"device": Usage(memory.total - memory.free, memory.total), "host": host_usage()}
        if self._device.shares_host:
            del used["device"]
        return time.monotonic(), used
