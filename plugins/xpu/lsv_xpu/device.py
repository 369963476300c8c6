"""One opened Intel GPU: memory, graphs that are checked by value, and the collectives between several."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv_base.errors import ConfigError
from lsv_runtime.devices.accelerator import MOST_TOKENS, Accelerator, first_line
from lsv_runtime.devices.collectives import BackendCommunicator
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Memory
from lsv_runtime.devices.graphs import Graphs
from lsv_xpu.links import Links
from lsv_xpu.runtime import Vendor

log = logging.getLogger(__name__)

_PROBED_BYTES = 64 << 20
"""Bytes to allocate in order to see whether free memory shrinks."""


class XpuDevice(Accelerator):
    """A GPU whose decoding steps of up to ``xpu.graph_rows`` requests are replayed from graphs, and where attention
    allows, short steps with prompts.

    ``xpu.graph`` auto captures where torch can and where one device computes alone, and drops a graph that fails or
    whose replay gives other values; 1 makes each of these an error; 0 launches every step op by op.
    """

    def __init__(self, info: DeviceInfo, vendor: Vendor, options: Mapping[str, OptionValue]) -> None:
        self._vendor, self._options = vendor, options
        self._graph = str(options.get("xpu.graph") or "auto")
        if self._graph == "1" and vendor.make_graph is None:
            raise ConfigError(f"xpu.graph=1, but torch {torch.__version__} has no XPUGraph", param="xpu.graph")
        rows, tokens = options.get("xpu.graph_rows"), options.get("xpu.graph_tokens")
        make = None if self._graph == "0" else vendor.make_graph
        super().__init__(
            info,
            vendor.torch_device(info.index),
            vendor.runtime,
            graphs=None if make is None else Graphs(make, vendor.runtime),
            graph_rows=64 if rows is None else int(rows),
            graph_tokens=MOST_TOKENS if tokens is None else int(tokens),
        )
        self._why_uncounted: str | None = None
        """Why the driver's free memory is unreliable; empty if it is reliable, None if untested."""

    def memory(self) -> Memory:
        """Where the driver does not tell what is free, all that this process has not reserved."""
        if self._why_uncounted is None:
            self._why_uncounted = self._find_uncounted()
            if self._why_uncounted:
                log.warning(
                    "%s: memory of other programs on this device is not counted (%s)",
                    self.info.name,
                    self._why_uncounted,
                )
        if not self._why_uncounted:
            return super().memory()
        used = min(self.info.total_bytes, self._runtime.memory_reserved(self.info.index))
        return Memory(total=self.info.total_bytes, free=self.info.total_bytes - used, used=used)

    def _find_uncounted(self) -> str:
        """Test the driver's free memory. Returns why it is unreliable: it raises, or does not change with an
        allocation, as in several Intel drivers (pytorch/pytorch#161381). Empty if it is reliable.
        """
        try:
            before = super().memory().free
            if self.torch_device.type == "cpu":  # emulated, without a device
                return ""
            held = torch.empty(_PROBED_BYTES, dtype=torch.uint8, device=self.torch_device)
            self.synchronize()
            after = super().memory().free
        except torch.OutOfMemoryError:
            return ""  # too little memory is free for a test, so trust the driver
        except RuntimeError as cause:
            return first_line(cause)
        del held
        self.release_cache()
        return "" if before - after >= _PROBED_BYTES // 2 else "its free memory does not change with an allocation"

    def communicator(self, group: Group) -> Communicator | None:
        if group.size == 1:
            return None
        if self._graph == "1":
            raise ConfigError(
                "xpu.graph=1 and tensor parallelism: oneCCL's collectives are not captured dependably; "
                "leave xpu.graph at auto",
                param="xpu.graph",
            )
        if self._graphs is not None:
            log.info("no graphs with %d devices: oneCCL's collectives are not captured dependably", group.size)
            self._graphs = None
        links = Links(self._vendor, self.info.index, group, self._options)
        return BackendCommunicator(group, links.connect, self.torch_device)

    def _drop_graphs(self, why: str, *, prompts: bool) -> None:
        """No more of these graphs. Raises ``ConfigError`` where they were asked for."""
        if self._graph == "1":
            raise ConfigError(f"xpu.graph=1, but {why}: leave xpu.graph at auto", param="xpu.graph")
        super()._drop_graphs(why, prompts=prompts)
