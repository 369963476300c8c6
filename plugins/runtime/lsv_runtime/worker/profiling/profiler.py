"""Records what a worker does between two orders."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from lsv.config import Profiling
from lsv_base.errors import BadRequest, RequestFailed
from lsv_runtime.devices.device import Device
from lsv_runtime.worker.profiling.calls import CallRecorder
from lsv_runtime.worker.profiling.ops import OpRecorder
from lsv_runtime.worker.profiling.recorder import DeviceRecorder, Recorder

_RECORDERS: Mapping[str, type[Recorder]] = {"torch": OpRecorder, "device": DeviceRecorder, "calls": CallRecorder}
"""By ``Profiling.kind``."""


class Profiler:
    """Starts and stops recording, in the thread that runs the steps."""

    def __init__(self, options: Profiling, device: Device, rank: int) -> None:
        self._options, self._device, self._rank = options, device, rank
        self._running: Recorder | None = None

    @property
    def running(self) -> bool:
        return self._running is not None

    def start(self, model: nn.Module) -> None:
        """Raises ``BadRequest`` while it is recording, ``ConfigError`` where the asked profiler can't be had."""
        if self.running:
            raise BadRequest("a profile is being recorded already: stop that first")
        recorder = _RECORDERS[self._options.kind](self._options, self._device, self._rank)
        recorder.start(model)
        self._running = recorder

    def stop(self) -> None:
        """Write down what was recorded. Raises ``BadRequest`` where nothing is being recorded, ``RequestFailed`` where
        it can't be written: then it is lost, and nothing else.
        """
        if self._running is None:
            raise BadRequest("no profile is being recorded: start one first")
        running, self._running = self._running, None
        try:
            running.stop()
        except (OSError, RuntimeError) as cause:
            raise RequestFailed(f"the profile could not be written to {self._options.folder}: {cause}") from cause
