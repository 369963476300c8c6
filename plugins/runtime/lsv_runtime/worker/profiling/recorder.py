"""What records, and the recorder that is the vendor's own."""

from __future__ import annotations

import abc
import time
from pathlib import Path

from torch import nn

from lsv.config import Profiling
from lsv_runtime.devices.device import Device


class Recorder(abc.ABC):
    """Made for one recording."""

    def __init__(self, options: Profiling, device: Device, rank: int) -> None:
        self._options, self._device, self._rank = options, device, rank

    @abc.abstractmethod
    def start(self, model: nn.Module) -> None: ...

    @abc.abstractmethod
    def stop(self) -> None:
        """Raises ``OSError`` or ``RuntimeError`` where what was recorded can't be written."""

    def path(self, suffix: str) -> Path:
        """A file of this rank's in the folder of profiles, which is made."""
        folder = Path(self._options.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"rank{self._rank}.{time.time_ns()}{suffix}"


class DeviceRecorder(Recorder):
    """Tells the GPU vendor's profiler, under which the process runs, what to record."""

    def start(self, model: nn.Module) -> None:
        self._device.record_range(start=True)

    def stop(self) -> None:
        self._device.record_range(start=False)
