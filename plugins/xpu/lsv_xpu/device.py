"""One opened Intel GPU: memory, graphs that are checked by value, and the collectives between several."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv.devices.accelerator import Accelerator, Graphs
from lsv.devices.collectives import BackendCommunicator
from lsv.errors import ConfigError
from lsv.platform import Communicator, Group, Memory, Shape, StepFn
from lsv_xpu.links import Links
from lsv_xpu.runtime import Vendor

log = logging.getLogger(__name__)

_TOLERANCE = 1e-2
"""How far a replayed step may be off the same step launched op by op, relative to the largest value."""


class XpuDevice(Accelerator):
    """A GPU whose decoding steps of up to ``xpu.graph_rows`` requests are replayed from graphs.

    ``xpu.graph`` auto captures where torch can and where one device computes alone, and drops a graph that fails or
    whose replay gives other values; 1 makes each of these an error; 0 launches every step op by op.
    """

    def __init__(self, info: DeviceInfo, vendor: Vendor, options: Mapping[str, OptionValue]) -> None:
        self._vendor, self._options = vendor, options
        self._graph = str(options.get("xpu.graph") or "auto")
        if self._graph == "1" and vendor.make_graph is None:
            raise ConfigError(f"xpu.graph=1, but torch {torch.__version__} has no XPUGraph", param="xpu.graph")
        rows, make = options.get("xpu.graph_rows"), None if self._graph == "0" else vendor.make_graph
        super().__init__(
            info,
            vendor.torch_device(info.index),
            vendor.runtime,
            graphs=None if make is None else Graphs(make, vendor.runtime.graph),
            graph_rows=64 if rows is None else int(rows),
        )
        self._counts_free = True

    def memory(self) -> Memory:
        """Where the driver does not tell what is free, all that this process has not reserved."""
        try:
            return super().memory()
        except RuntimeError as cause:
            if self._counts_free:
                log.warning("%s: other programs on this device are not counted (%s)", self.info.name, _line(cause))
            self._counts_free = False
            used = min(self.info.total_bytes, self._runtime.memory_reserved(self.info.index))
            return Memory(total=self.info.total_bytes, free=self.info.total_bytes - used, used=used)

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

    def compile(self, step: StepFn, shape: Shape, *, eager: bool) -> StepFn:
        """A captured graph whose replay has given the same values as the step, or the step itself."""
        try:
            replay = super().compile(step, shape, eager=eager)
        except RuntimeError as cause:
            self._drop_graphs(f"the step of {shape.rows} rows can't be captured ({_line(cause)})")
            return step
        if replay is step:
            return step
        expected = [leaf.clone() for leaf in tree_leaves(step())]  # the replay may write to the same tensors
        off = _difference(expected, tree_leaves(replay()))
        if not off <= _TOLERANCE:
            self._drop_graphs(f"replaying the step of {shape.rows} rows gives other values (off by {off:.2g})")
            return step
        return replay

    def _drop_graphs(self, why: str) -> None:
        """No graphs from here on. Raises ``ConfigError`` where they were asked for."""
        if self._graph == "1":
            raise ConfigError(f"xpu.graph=1, but {why}: leave xpu.graph at auto", param="xpu.graph")
        log.warning("no graphs on %s: %s", self.info.name, why)
        self._graphs = None


def _difference(right: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """The largest difference between two results, relative to the largest value; NaN where one has NaN alone."""
    worst = 0.0
    for one, two in zip(right, other, strict=True):
        one, two = one.float(), two.float()
        if not torch.equal(one.isnan(), two.isnan()):
            return float("nan")
        size = one.nan_to_num().abs().amax().clamp(min=1e-6)
        worst = max(worst, float((one - two).nan_to_num().abs().amax() / size))
    return worst


def _line(cause: Exception) -> str:
    return str(cause).partition("\n")[0]
