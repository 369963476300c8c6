"""The calls this plugin makes into ``torch.xpu`` and oneCCL, in one object: the real one here, a fake in emulation.

Signatures: ``torch.xpu`` and ``torch.distributed.ProcessGroupXCCL`` of torch 2.13.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lsv_base.errors import ConfigError
from lsv_base.processes.output import Output
from lsv_base.processes.process import Process
from lsv_runtime.devices.communicator import Group
from lsv_xpu.probe import INSTALL_TORCH


class Vendor(Protocol):
    """What the platform needs of Intel's software.

    ``runtime`` is ``torch.xpu``: a ``lsv_runtime.devices.accelerator.Runtime`` with ``device_count``,
    ``get_device_properties`` and ``can_device_access_peer``. ``make_graph`` is None where torch has no graphs for these
    devices.
    """

    runtime: Any
    make_graph: Callable[[], Any] | None

    def torch_device(self, index: int) -> torch.device: ...

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """One of torch's process-group backends. Raises ``ConfigError`` where torch has none for these devices."""
        ...

    def try_links(self, group: Group, index: int, variables: Mapping[str, str], seconds: float) -> str | None:
        """None where all collectives of ``group`` are right with oneCCL's ``variables``, else what went wrong.

        Called by all ranks at once; returns after ``seconds`` at the latest.
        """
        ...


class TorchXpu:
    """The installed torch. Raises ``ConfigError`` where it was built without XPU."""

    def __init__(self) -> None:
        if not getattr(torch._C, "_has_xpu", False):
            raise ConfigError(f"torch {torch.__version__} was built without XPU: {INSTALL_TORCH}", param="platform")
        self.runtime: Any = torch.xpu
        self.make_graph: Callable[[], Any] | None = getattr(torch.xpu, "XPUGraph", None)

    def torch_device(self, index: int) -> torch.device:
        return torch.device("xpu", index)

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        if not dist.is_xccl_available():
            raise ConfigError(
                f"torch {torch.__version__} was built without xccl, which ranks need to talk: {INSTALL_TORCH}",
                param="tensor_parallel_size",
            )
        options = dist.ProcessGroupXCCL.Options()
        options._timeout, options.global_ranks_in_group = timeout, list(range(size))
        return dist.ProcessGroupXCCL(store, rank, size, options)

    def try_links(self, group: Group, index: int, variables: Mapping[str, str], seconds: float) -> str | None:
        """In a child process: oneCCL reads its variables once, and a trial may hang or lose the device."""
        given = [f"{name}={value}" for name, value in variables.items()]
        ranks = ",".join(map(str, group.ranks))
        words = [group.axis, ranks, group.address, *map(str, (group.rank, index, os.getpid()))]
        command = ["env", *given, sys.executable, "-m", "lsv_xpu.trial", *words]
        return run_trial(command, seconds)


def run_trial(command: list[str], seconds: float) -> str | None:
    """None where the command ends well; else the last line of its errors, or how it ended."""
    with Output() as errors, Process(command, stdout=subprocess.DEVNULL, stderr=errors.fileno()) as trial:
        code = trial.wait(seconds)
        if code is None:
            return f"a collective did not return within {seconds:g} s"
        if code == 0:
            return None
        ended = f"the trial {trial.how_it_ended()}"
        return ended if code < 0 else next(iter(errors.last_lines(1)), ended)
