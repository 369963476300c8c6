"""What the layers of a KV group share in a step, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lsv.attention import BatchLayout, Int32s
from lsv.platform import Device


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """Row r has tokens ``starts[r]:starts[r + 1]`` of the step, ``context[r]`` tokens with those before, and blocks
    ``tables[r]``. The K and V of token t go to ``slots[t]``: its page times the block size plus its place in the page.

    All are int32: starts [rows + 1], context [rows], tables [rows, blocks], slots [tokens]. They are views of one
    ``memory``, so that one copy brings them to the device; ``host`` is the same on the host.
    """

    host: Int32s
    memory: torch.Tensor
    starts: torch.Tensor
    context: torch.Tensor
    tables: torch.Tensor
    slots: torch.Tensor

    @property
    def rows(self) -> int:
        return self.context.shape[0]

    @property
    def decoding(self) -> bool:
        """Every row has one token, which the shapes alone tell."""
        return self.slots.shape[0] == self.rows

    @property
    def host_starts(self) -> Int32s:
        return self.host[: self.rows + 1]

    @property
    def host_context(self) -> Int32s:
        return self.host[self.rows + 1 : 2 * self.rows + 1]


def make_plan(batch: BatchLayout, table: Int32s, block_size: int, device: Device | None) -> PagedPlan:
    """A plan with tensors of its own. Without a device they stay on the host."""
    host, width = _numbers(batch, table, block_size)
    memory = _staged(host, device)
    if device is not None:
        memory = memory.to(device.torch_device, non_blocking=True)
    rows = len(batch.query)
    ends = np.cumsum((rows + 1, rows, rows * width)).tolist()
    starts, context, tables, slots = memory.tensor_split(ends)
    return PagedPlan(host, memory, starts, context, tables.view(rows, width), slots)


def refill(plan: PagedPlan, batch: BatchLayout, table: Int32s, block_size: int, device: Device | None) -> PagedPlan:
    """The same plan for another batch of its shape; its tensors stay where they are."""
    host, width = _numbers(batch, table, block_size)
    assert (len(batch.query), width, len(host)) == (*plan.tables.shape, len(plan.host)), "a batch of another shape"
    plan.host[:] = host
    plan.memory.copy_(_staged(host, device), non_blocking=True)
    return plan


def _staged(host: Int32s, device: Device | None) -> torch.Tensor:
    """``host`` where the device can fetch it beside its work."""
    memory = torch.from_numpy(host)
    pinned = device is not None and device.pinned and device.torch_device.type != "cpu"
    return memory.pin_memory() if pinned else memory


def _numbers(batch: BatchLayout, table: Int32s, block_size: int) -> tuple[Int32s, int]:
    """Starts, context, tables and slots one after another, and how many blocks the tables are wide."""
    query, context = (numbers.astype(np.int64) for numbers in (batch.query, batch.context))
    ends, width = np.cumsum(query), max(table.shape[1], batch.blocks)
    tables = np.zeros((len(query), width), np.int64)
    tables[:, : table.shape[1]] = table
    slots = np.zeros(int(ends[-1]), np.int64)
    if table.shape[1]:
        row = np.repeat(np.arange(len(query)), query)
        position = np.maximum(np.arange(len(slots)) + np.repeat(context - ends, query), 0)
        slots = tables[row, position // block_size] * block_size + position % block_size
    return np.concatenate((np.zeros(1), ends, context, tables.ravel(), slots)).astype(np.int32), width
