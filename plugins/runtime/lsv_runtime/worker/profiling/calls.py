"""Functions of Python by VizTracer: a trace for ui.perfetto.dev, small where ranks are many."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from lsv_runtime.worker.profiling.recorder import Recorder

log = logging.getLogger(__name__)

_MOST = 1_000_000
"""Calls that are kept, the latest; some 100 MB of memory."""


class CallRecorder(Recorder):
    """Of the thread that runs the steps; with the engine in the same process that is the scheduler's, too."""

    _tracer: Any

    def start(self, model: nn.Module) -> None:
        from viztracer import VizTracer

        self._tracer = VizTracer(tracer_entries=_MOST, verbose=0)
        self._tracer.start()

    def stop(self) -> None:
        self._tracer.stop()
        file = self.path(f".calls.json{'.gz' if self._options.compressed else ''}")
        self._tracer.save(output_file=str(file))
        log.info("the calls are in %s", file)
