"""Observes the steps that a device is given, from their launch to the end of their work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lsv_hpu.settings import HpuOptions
from lsv_hpu.steps.counters import StepCounter, chosen_counters
from lsv_hpu.steps.facts import StepFacts
from lsv_hpu.steps.trace import StepTrace
from lsv_hpu.vendor import Vendor
from lsv_hpu.warmup import BucketPolicy
from lsv_runtime.devices.device import Event
from lsv_runtime.devices.shapes import Shape


class StepObserver:
    """Logs the counters of each step, and writes steps to a trace. Either may be absent."""

    def __init__(self, vendor: Vendor, counters: Sequence[StepCounter], trace: StepTrace | None) -> None:
        self._vendor, self._counters, self._trace = vendor, counters, trace
        self._policy: BucketPolicy | None = None
        self._end: Callable[[], None] | None = None

    def watch(self, policy: BucketPolicy) -> BucketPolicy:
        """``policy`` with its warm-up observed, too. Its shapes are those of the steps."""
        self._policy, policy.around = policy, self._warming
        return policy

    @contextmanager
    def observe(self, kind: str, start: Sequence[int], count: Sequence[int]) -> Iterator[None]:
        """Around the launch of a step; see ``Device.observe``."""
        assert self._policy is not None, "steps come after their shapes"
        self._finish()
        longest = max(map(sum, zip(start, count, strict=True)))
        facts = StepFacts(kind, len(count), sum(count), longest, -(-longest // self._policy.limits.block_size))
        began = time.perf_counter()
        with ExitStack() as stack:
            counted = [stack.enter_context(self._vendor.metric(counter.metric)) for counter in self._counters]
            yield
        for counter, metric in zip(self._counters, counted, strict=True):
            counter.log(metric.stats(), facts)
        if self._trace is not None:
            self._end = self._trace.begin(facts, self._policy.padded, began)

    def ending(self, event: Event) -> Event:
        """``event``, which also ends the step launched last in the trace."""
        ended, self._end = self._end, None
        return event if ended is None else _Ending(event, ended)

    def close(self) -> None:
        self._finish()
        if self._trace is not None:
            self._trace.close()

    def _finish(self) -> None:
        """End a step that nothing waits for."""
        ended, self._end = self._end, None
        if ended is not None:
            ended()

    @contextmanager
    def _warming(self, shape: Shape) -> Iterator[None]:
        """Around a shape of warm-up, whose compilations are expected and not logged."""
        assert self._policy is not None, "a policy warms up"
        began = time.perf_counter()
        with ExitStack() as stack:
            for counter in self._counters:
                stack.enter_context(self._vendor.metric(counter.metric))
            yield
        if self._trace is not None:
            self._trace.add_warmup(f"warm-up {self._policy.buckets.describe(shape)}", began)


class _Ending:
    def __init__(self, event: Event, ended: Callable[[], None]) -> None:
        self._event, self._ended = event, ended

    def synchronize(self) -> None:
        self._event.synchronize()
        self._ended()


def make_observer(options: HpuOptions, vendor: Vendor, device: int) -> StepObserver | None:
    """What the options ask for; None if that is nothing. Raises ``ConfigError`` if the trace can't be written."""
    counters = chosen_counters(options)
    trace = StepTrace(Path(options.profiler_dir), device) if options.profiler_enabled else None
    return StepObserver(vendor, counters, trace) if counters or trace else None
