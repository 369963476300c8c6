"""One opened GPU, and the collectives between several."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lsv.capabilities import DeviceInfo
from lsv_base.errors import ConfigError
from lsv_cuda.vendor import Vendor
from lsv_runtime.devices.accelerator import MOST_TOKENS, Accelerator
from lsv_runtime.devices.collectives import BackendCommunicator
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.graphs import Graphs


class CudaDevice(Accelerator):
    """A GPU whose steps are replayed from graphs: decoding ones of up to ``graph_rows`` requests, and those with
    prompts of up to ``graph_tokens`` tokens.
    """

    def __init__(self, info: DeviceInfo, vendor: Vendor, *, graph_rows: int, graph_tokens: int = MOST_TOKENS) -> None:
        kind = vendor.device_type
        where = torch.device(kind) if kind == "cpu" else torch.device(kind, info.index)
        graphs = Graphs(vendor.runtime.CUDAGraph, vendor.runtime)
        super().__init__(info, where, vendor.runtime, graphs=graphs, graph_rows=graph_rows, graph_tokens=graph_tokens)
        self._connect, self._profiler = vendor.connect, vendor.runtime.profiler

    def communicator(self, group: Group) -> Communicator | None:
        if group.size == 1:
            return None
        connected = BackendCommunicator(group, self._connect, self.torch_device)
        if group.axis in ("tp", "ep"):  # stages capture graphs of their own, with no collective of others in them
            self._ranks = connected  # those that share experts come last, and the others of its layers are among them
        return connected

    def record_range(self, *, start: bool) -> None:
        """What Nsight Systems records with ``--capture-range=cudaProfilerApi``."""
        (self._profiler.start if start else self._profiler.stop)()


def nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Collectives between the current devices of several processes. Raises ``ConfigError`` where torch has no NCCL."""
    if not dist.is_nccl_available():
        raise ConfigError(f"torch {torch.__version__} is built without NCCL, which tensor parallelism needs here")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
