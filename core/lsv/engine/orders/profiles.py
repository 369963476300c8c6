"""Starting and stopping profiles."""

from __future__ import annotations

from typing import Any

from lsv.engine.engine import Engine
from lsv.engine.executor import StartProfiler, StopProfiler
from lsv.errors import BadRequest


def order_profile(engine: Engine[Any], order: str) -> None:
    """``start_profile`` or ``stop_profile``. Raises ``BadRequest`` where that is not enabled, or not its turn."""
    if engine.config.profiling is None:
        raise BadRequest("profiles are not enabled: start with --torch-profiler-dir FOLDER, or with --profiler-config")
    engine.sleep.check_awake()
    engine.control(StartProfiler() if order == "start_profile" else StopProfiler())
