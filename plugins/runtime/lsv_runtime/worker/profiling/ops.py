"""Ops and layers by torch's profiler: a trace for ui.perfetto.dev, and a table of ops by their own time."""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lsv.config import Profiling
from lsv_runtime.devices.device import Device
from lsv_runtime.worker.profiling.named_ops import NamedOps
from lsv_runtime.worker.profiling.recorder import Recorder

log = logging.getLogger(__name__)

_ROWS = 60
_WIDTH = 80


class OpRecorder(Recorder):
    """Names the layers of a model while it records."""

    def __init__(self, options: Profiling, device: Device, rank: int) -> None:
        super().__init__(options, device, rank)
        self._named: NamedOps | None = None
        self._profile = profile(
            activities=_activities(),
            record_shapes=options.record_shapes,
            profile_memory=options.memory,
            with_stack=options.stacks,
            with_flops=options.flops,
        )

    def start(self, model: nn.Module) -> None:
        self._profile.start()
        self._named = NamedOps(model)

    def stop(self) -> None:
        if self._named is not None:
            self._named.restore()
        self._profile.stop()
        trace = self.path(f".pt.trace.json{'.gz' if self._options.compressed else ''}")
        self._profile.export_chrome_trace(str(trace))
        order = f"self_{'cpu' if torch.accelerator.current_accelerator() is None else 'device'}_time_total"
        table = self._profile.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=_WIDTH)
        ops = trace.with_name(f"{trace.name.partition('.pt.')[0]}.ops.txt")
        ops.write_text(table)
        log.info("the profile is in %s, and a summary by op in %s next to it", trace, ops.name)


def _activities() -> list[ProfilerActivity]:
    """The host, and what kinds of devices torch can watch here."""
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    return sorted(supported, key=lambda one: one.value)
