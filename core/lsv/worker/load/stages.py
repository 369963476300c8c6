"""What each stage of a start takes, in the log: of the device's memory, of the host's, and of time."""

from __future__ import annotations

import logging
import time

from lsv.devices.usage import Usage, host_usage
from lsv.platform import Device

log = logging.getLogger(__name__)

_SHORT = 0.1
"""Seconds; a stage that was shorter and took no memory says nothing to a user."""


class Stages:
    """Tells of one stage after the other. Between two tales memory is counted for the later one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = self._look()

    def tell(self, stage: str) -> None:
        """A stage has ended, and the next one begins. One that took no time is logged for debugging alone."""
        began, device, host = self._before
        now, device_now, host_now = self._before = self._look()
        level = logging.INFO if now - began >= _SHORT or device_now.moved_since(device) else logging.DEBUG
        log.log(
            level, "%s %s and %s in %.2f seconds",
            stage, device_now.since(device, "device"), host_now.since(host, "host"), now - began,
        )  # fmt: skip

    def _look(self) -> tuple[float, Usage, Usage]:
        """The time, and both memories once all work given so far is done."""
        self._device.synchronize()
        memory = self._device.memory()
        return time.monotonic(), Usage(memory.total - memory.free, memory.total), host_usage()
