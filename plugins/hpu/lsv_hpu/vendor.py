"""The calls this plugin makes into Intel's Gaudi software, in one object: the real one here, a strict fake in tests.

Source of signatures: gaudi-pytorch-bridge v1.19.0 (5a56187), python_packages/habana_frameworks/torch: hpu/__init__.py,
hpu/events.py, hpu/memory.py, hpu/metrics/metrics.py, utils/internal.py and distributed/hccl/ProcessGroupHCCL.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch

from lsv_hpu.software import load
from lsv_runtime.devices.accelerator import Runtime

Function = Callable[..., Any]

_SHAPES = 8192


class Metric(Protocol):
    """What was counted."""

    def stats(self) -> Sequence[tuple[str, Any]]:
        """Names and values. The first is ``TotalNumber``, how often it happened."""
        ...


class Vendor(Runtime, Protocol):
    """What the platform needs of the software: the functions of a runtime, and how to run a step.

    Bytes and counts are plain integers. ``index`` is taken for the sake of the protocol: a process has one device.
    """

    def is_lazy(self) -> bool:
        """Whether ops are gathered into graphs instead of run at once (``PT_HPU_LAZY_MODE=1``)."""
        ...

    def compile(self, function: Function, *, fullgraph: bool, dynamic: bool | None) -> Function:
        """``torch.compile`` with the vendor's backend; compiles at the first call with arguments of another form."""
        ...

    def forbid_compiling(self) -> None:
        """From now on a compiled function that would have to be compiled again raises ``RuntimeError``."""
        ...

    def metric(self, name: str) -> AbstractContextManager[Metric]:
        """Counts within a context: ``graph_compilation``, or ``cpu_fallback`` for ops that run on the host instead."""
        ...

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """One of torch's process-group backends between devices."""
        ...


class Habana:
    """The installed software. Raises ``ConfigError`` where it can't be loaded."""

    def __init__(self) -> None:
        self._habana = load("habana_frameworks.torch")
        self._hpu = load("torch:hpu")
        # All parts and shapes are compiled from the same code, far more often than torch expects of one function.
        torch._dynamo.config.recompile_limit = _SHAPES
        torch._dynamo.config.accumulated_recompile_limit = _SHAPES

    def Event(self) -> Any:
        return self._hpu.Event()

    def set_device(self, index: int, /) -> None:
        """Nothing: the software takes the device that ``HLS_MODULE_ID`` names, or the first that is free."""

    def mem_get_info(self, index: int, /) -> tuple[int, int]:
        free, total = self._hpu.mem_get_info()
        return int(free), int(total)

    def memory_allocated(self, index: int, /) -> int:
        return int(self._hpu.memory_allocated())

    def memory_reserved(self, index: int, /) -> int:
        """What is allocated: the software's own figure is its limit, which is all memory there is."""
        return self.memory_allocated(index)

    def max_memory_allocated(self, index: int, /) -> int:
        return int(self._hpu.max_memory_allocated())

    def reset_peak_memory_stats(self, index: int, /) -> None:
        self._hpu.reset_peak_memory_stats()

    def empty_cache(self) -> None:
        """Nothing: the software has no such call."""

    def synchronize(self, index: int, /) -> None:
        self._hpu.synchronize()

    def is_lazy(self) -> bool:
        return bool(self._habana.utils.internal.is_lazy())

    def compile(self, function: Function, *, fullgraph: bool, dynamic: bool | None) -> Function:
        compiled: Function = torch.compile(function, backend="hpu_backend", fullgraph=fullgraph, dynamic=dynamic)
        return compiled

    def forbid_compiling(self) -> None:
        torch.compiler.set_stance("fail_on_recompile")

    def metric(self, name: str) -> AbstractContextManager[Metric]:
        counting: AbstractContextManager[Metric] = load("habana_frameworks.torch.hpu.metrics:metric_localcontext")(name)
        return counting

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        return load("habana_frameworks.torch.distributed.hccl:ProcessGroupHCCL")(store, rank, size, "lsv")
