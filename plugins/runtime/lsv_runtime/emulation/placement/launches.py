"""What computes outside torch, as kernels of the emulated devices: Triton's interpreter, and collectives by gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lsv import settings
from lsv_runtime.devices.collectives import gloo
from lsv_runtime.emulation.placement.device import as_kernel
from lsv_runtime.emulation.recording import Method


def watch_interpreter() -> list[Method]:
    """Have Triton's interpreter, if it is on, run kernels on the memory of devices and refuse tensors of the host.

    The answer is how it launches them.
    """
    if settings.environment_with({}).get("TRITON_INTERPRET") != "1":
        return []
    try:
        from triton.runtime.interpreter import GridExecutor  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return []
    launch = GridExecutor.__call__
    if not hasattr(launch, "__wrapped__"):
        GridExecutor.__call__ = as_kernel(launch)
    return [(GridExecutor, "__call__")]


class EmulatedGloo:
    """A process group of gloo for tensors of devices; the methods are torch's."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        backend = gloo(store, rank, size, timeout)
        self._allgather_base, self.alltoall_base = as_kernel(backend._allgather_base), as_kernel(backend.alltoall_base)
        self.broadcast = as_kernel(backend.broadcast)
        self.shutdown = backend.shutdown
