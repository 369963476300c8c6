"""The rows of a step as FlashInfer takes them: the pages of all rows in one list, and where in it each row's begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.attention.plan import pack, place_table, row_starts, split
from lsv_runtime.attention.step_plan import without_hidden
from lsv_runtime.attention.tables import TableRows
from lsv_runtime.devices.device import Device


@dataclass(slots=True, eq=False)
class Lengths:
    """int32 tensors. What plans are made of is on the host, in pinned memory where the device can fetch from there; it
    is new in each step. What kernels read is on the device, and overwritten in place for a step of a fixed shape.

    Blocks behind a window are left out, and a row's context is the shorter by them.
    """

    starts: torch.Tensor
    """On the host [rows + 1]: row r has the tokens ``starts[r]:starts[r + 1]`` of the step."""

    borders: torch.Tensor
    """On the host [rows + 1]: row r has the pages ``borders[r]:borders[r + 1]`` of ``pages``."""

    last: torch.Tensor
    """On the host [rows]: tokens in the last page of each row, from 1 to the block size."""

    context: torch.Tensor
    """On the host [rows]: tokens of each row, those of earlier steps included."""

    memory: torch.Tensor
    """On the device: ``token_rows``, ``positions``, ``device_borders`` and ``device_last``, one after another."""

    token_rows: torch.Tensor
    """[tokens]: the row of each token."""

    positions: torch.Tensor
    """[tokens]: where in its row's pages the K and V of each token go."""

    device_borders: torch.Tensor
    device_last: torch.Tensor

    pages: torch.Tensor
    """On the device [``most_pages``]: the first ``count`` are the rows' pages."""

    count: int
    block_size: int
    longest_query: int

    @property
    def rows(self) -> int:
        return len(self.last)

    @property
    def most_pages(self) -> int:
        return len(self.pages)

    @property
    def decoding(self) -> bool:
        """Whether every row has one token."""
        return len(self.positions) == self.rows


def find_lengths(
    batch: BatchLayout,
    table: Int32s | TableRows,
    block_size: int,
    device: Device,
    window: int | None = None,
    into: Lengths | None = None,
) -> Lengths:
    """Of a flat batch over the block table [rows, blocks]; ``into`` are those of a batch of the same shape, whose
    tensors on the device stay in place.
    """
    starts = row_starts(batch)
    context, table, shape = without_hidden(batch, table, block_size, window)
    counts = -(-context // block_size)
    borders = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    last = context - (counts - 1) * block_size
    rows = np.arange(len(context)).repeat(batch.query)
    positions = np.maximum(np.arange(starts[-1]) + (context - starts[1:]).repeat(batch.query), 0)
    parts = (rows, positions, borders, last)
    packed = pack(parts, np.int32)
    numbers = torch.from_numpy(np.concatenate((packed, pack((starts, context), np.int32))))
    staged = numbers.pin_memory() if device.pinned else numbers
    sent = staged[: len(packed)]
    *_, host_borders, host_last = split(sent, parts)
    host_starts, host_context = split(staged[len(packed) :], (starts, context))
    tables, count = place_table(table, shape, device), int(borders[-1])
    if into is None:
        memory = sent.to(device.torch_device, non_blocking=True)
        pages = torch.zeros(shape[0] * shape[1], dtype=torch.int32, device=device.torch_device)
    else:
        memory, pages = into.memory, into.pages
        assert (len(memory), len(pages)) == (len(sent), shape[0] * shape[1]), "lengths of a batch of another shape"
        memory.copy_(sent, non_blocking=True)
    token_rows, placed, device_borders, device_last = split(memory, parts)
    pages[:count] = _list_pages(tables, device_borders, count)
    return Lengths(
        host_starts, host_borders, host_last, host_context, memory, token_rows, placed, device_borders, device_last,
        pages, count, block_size, int(batch.query.max()),
    )  # fmt: skip


def find_step_lengths(batch: BatchLayout, block_size: int, device: Device) -> Lengths:
    """For a step without a cache, whose rows get consecutive pages."""
    width = -(-int(batch.context.max()) // block_size)
    table = np.arange(len(batch.query) * width, dtype=np.int32).reshape(-1, width)
    return find_lengths(BatchLayout(batch.query, batch.context, ()), table, block_size, device)


def _list_pages(tables: torch.Tensor, borders: torch.Tensor, count: int) -> torch.Tensor:
    """The pages that rows have in tables [rows, blocks], one row's after another's: [count]."""
    place = torch.arange(count, dtype=torch.int32, device=tables.device)
    row = torch.searchsorted(borders[1:], place, right=True, out_int32=True)
    return tables[row, place - borders[row]]
