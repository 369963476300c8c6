"""What an engine's thread does from step to step, as events of Chrome's trace format, which ui.perfetto.dev shows.

Format: "Trace Event Format", google/catapult; times are microseconds of the system's clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import Executor, ReportProgress
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.processes.orders import WorkerOrder, name_of

PID = 1
"""The process that a trace shows the engine as."""
_HOST = 0


class Timeline:
    """An executor around another one that writes down when steps were given to it and were done.

    Steps in flight side by side have tracks of their own; the track of the host shows what lies between.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.depth = executor.depth
        self.events: list[Mapping[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "lsv engine"}},
            _named(_HOST, "host"),
            *(_named(track, "steps") for track in range(1, self.depth + 1)),
        ]
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._free = _now()

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        return self.executor.start(config, progress)

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        began = _now()
        self._add(_HOST, "settle and plan", self._free, began)
        self.executor.submit(plan, masks)
        self._free = _now()
        self._add(_HOST, "submit", began, self._free, step=plan.step)
        self._in_flight.append((plan, began))

    def collect(self, timeout: float) -> StepResult:
        began = _now()
        self._add(_HOST, "settle and plan", self._free, began)
        result = self.executor.collect(timeout)
        self._free = _now()
        self._add(_HOST, "wait", began, self._free, step=result.step)
        plan, submitted = self._in_flight.popleft()
        self._add(
            1 + plan.step % self.depth, f"{plan.kind} step", submitted, self._free, step=plan.step,
            rows=len(plan.rows), tokens=plan.tokens, begins=len(plan.begin), ends=len(plan.end),
            encodes=len(plan.encode), model_ms=round(1000 * result.seconds, 3),
        )  # fmt: skip
        self.events.append(
            {"ph": "C", "name": "tokens of a step", "pid": PID, "ts": submitted, "args": {"tokens": plan.tokens}}
        )
        return result

    def check(self) -> None:
        self.executor.check()

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        began = _now()
        answers = self.executor.control(order)
        self._free = _now()
        self._add(_HOST, name_of(order), began, self._free)
        return answers

    def stop(self) -> None:
        self.executor.stop()

    def _add(self, track: int, name: str, began: float, ended: float, **more: object) -> None:
        self.events.append(
            {
                "ph": "X",
                "name": name,
                "pid": PID,
                "tid": track,
                "ts": began,
                "dur": max(0.0, ended - began),
                "args": more,
            }
        )


def _named(track: int, name: str) -> Mapping[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": PID, "tid": track, "args": {"name": name}}


def _now() -> float:
    return time.time_ns() / 1000
