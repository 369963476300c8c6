"""Records profiles."""

from __future__ import annotations

from lsv.config import Profiling
from lsv.engine.executor import StartProfiler, StopProfiler
from lsv_base.errors import BadRequest
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.parts.part import WorkerPart, WorkerPartContext
from lsv_runtime.worker.profiling.profiler import Profiler


def make_profiles(context: WorkerPartContext) -> ProfilesPart | None:
    """None where profiles are not enabled."""
    return None if context.config.profiling is None else ProfilesPart(context.config.profiling, context.rank)


class ProfilesPart(WorkerPart):
    """Has a profiler record the loaded model."""

    def __init__(self, options: Profiling, rank: int) -> None:
        self._options, self._rank = options, rank
        self._resident: ResidentModel | None = None
        self._profiler: Profiler | None = None
        self.orders = {StartProfiler: lambda _: self._start(), StopProfiler: lambda _: self._open().stop()}

    def load(self, resident: ResidentModel) -> None:
        self._resident = resident

    def check_sleep(self) -> None:
        if self._profiler is not None and self._profiler.running:
            raise BadRequest("a profile is being recorded: stop that first")

    def _start(self) -> None:
        profiler = self._open()
        assert self._resident is not None
        profiler.start(self._resident.loaded.declared.model)

    def _open(self) -> Profiler:
        if self._profiler is None:
            assert self._resident is not None, "no model is loaded"
            self._profiler = Profiler(self._options, self._resident.device, self._rank)
        return self._profiler
