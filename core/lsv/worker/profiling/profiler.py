"""Records what a worker does between two orders, with torch's profiler or the GPU vendor's."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lsv.config import Profiling
from lsv.errors import BadRequest, RequestFailed
from lsv.platform import Device
from lsv.worker.profiling.named_ops import NamedOps

log = logging.getLogger(__name__)

_ROWS = 60
_WIDTH = 80


class Profiler:
    """Starts and stops recording, in the thread that runs the steps. A recording becomes files in the folder of
    ``options``: a trace for ui.perfetto.dev, and a table of ops by their own time.
    """

    def __init__(self, options: Profiling, device: Device, rank: int) -> None:
        self._options, self._device, self._rank = options, device, rank
        self._running: profile | None = None
        self._named: NamedOps | None = None
        self._by_vendor = False

    @property
    def running(self) -> bool:
        return self._running is not None or self._by_vendor

    def start(self, model: nn.Module) -> None:
        """Raises ``BadRequest`` while it is recording, ``ConfigError`` where the asked profiler can't be had."""
        if self.running:
            raise BadRequest("a profile is being recorded already: stop that first")
        if self._options.kind == "device":
            self._device.record_range(start=True)
            self._by_vendor = True
            return
        options = self._options
        running = profile(
            activities=_activities(),
            record_shapes=options.record_shapes,
            profile_memory=options.memory,
            with_stack=options.stacks,
            with_flops=options.flops,
        )
        running.start()
        self._named, self._running = NamedOps(model), running

    def stop(self) -> None:
        """Write down what was recorded. Raises ``BadRequest`` where nothing is being recorded, ``RequestFailed`` where
        it can't be written: then it is lost, and nothing else.
        """
        if self._by_vendor:
            self._device.record_range(start=False)
            self._by_vendor = False
            return
        if self._running is None or self._named is None:
            raise BadRequest("no profile is being recorded: start one first")
        running, self._running = self._running, None
        self._named.restore()
        self._named = None
        running.stop()
        try:
            self._write(running)
        except (OSError, RuntimeError) as cause:
            raise RequestFailed(f"the profile could not be written to {self._options.folder}: {cause}") from cause

    def _write(self, running: profile) -> None:
        folder = Path(self._options.folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rank{self._rank}.{time.time_ns()}"
        trace = folder / f"{name}.pt.trace.json{'.gz' if self._options.compressed else ''}"
        running.export_chrome_trace(str(trace))
        averages = running.key_averages()
        order = f"self_{'cpu' if torch.accelerator.current_accelerator() is None else 'device'}_time_total"
        table = averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=_WIDTH)
        (folder / f"{name}.ops.txt").write_text(table)
        log.info("the profile is in %s, and what took how long in %s.ops.txt beside it", trace, name)


def _activities() -> list[ProfilerActivity]:
    """The host, and what kinds of devices torch can watch here."""
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    return sorted(supported, key=lambda one: one.value)
