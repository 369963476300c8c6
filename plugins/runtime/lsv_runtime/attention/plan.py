"""What the layers of a KV group share in a step: computed in numpy, brought to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.attention.tables import TableRows, blocks_at
from lsv_runtime.devices import staging
from lsv_runtime.devices.device import Device

Int64s = npt.NDArray[np.int64]

_ALIGNMENT = 16
"""Bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """Everything is int32. All but ``tables`` are views of one ``memory``; ``host`` has these numbers on the host."""

    host: Int32s
    memory: torch.Tensor

    starts: torch.Tensor
    """[rows + 1]: row r has the tokens ``starts[r]:starts[r + 1]`` of the step."""

    context: torch.Tensor
    """[rows]: tokens of each row, those of earlier steps included."""

    slots: torch.Tensor
    """[tokens]: where K and V of each token go, its page times the block size plus its place in the page."""

    tables: torch.Tensor
    """[rows, blocks]: the pages of each row."""

    more: tuple[torch.Tensor, ...] = ()
    """What else a backend has planned, in its own shapes."""

    @property
    def rows(self) -> int:
        return self.context.shape[0]

    @property
    def decoding(self) -> bool:
        """Whether every row has one token; shapes alone tell, so nothing is read from the device."""
        return self.slots.shape[0] == self.rows

    @property
    def host_starts(self) -> Int32s:
        return self.host[: self.rows + 1]

    @property
    def host_context(self) -> Int32s:
        first = _whole(self.rows + 1, self.host.itemsize)
        return self.host[first : first + self.rows]


def make_plan(
    batch: BatchLayout,
    table: Int32s | TableRows,
    block_size: int,
    device: Device | None,
    into: PagedPlan | None = None,
    more: Sequence[Int32s] = (),
) -> PagedPlan:
    """The plan of a flat batch over the block table [rows, blocks], on the host if there is no device.

    It has tensors of its own or, given ``into``, is that plan of a batch of the same shape: its tensors stay in place.
    ``more`` goes along in the same copy; its shapes are to depend on that of the batch alone.
    """
    starts = row_starts(batch)
    slots = token_slots(batch, starts, table, block_size)
    parts: list[npt.NDArray[Any]] = [starts, batch.context, slots, *more]
    host, shape = pack(parts, np.int32), table_shape(batch, table)
    if into is None:
        memory = send(host, device)
        first, context, places, *rest = split(memory, parts)
        return PagedPlan(host, memory, first, context, places, place_table(table, shape, device), tuple(rest))
    assert (len(host), shape) == (len(into.host), into.tables.shape), "the plan is of a batch of another shape"
    into.host[:] = host
    overwrite(into.memory, host, device)
    place_table(table, shape, device, into.tables)
    return into


def row_starts(batch: BatchLayout) -> Int32s:
    """[rows + 1]: where the places of each row begin in the token dimension, and where the last one's end."""
    if batch.span:
        return np.arange(len(batch.query) + 1, dtype=np.int32) * batch.span
    starts = np.zeros(len(batch.query) + 1, np.int32)
    batch.query.cumsum(out=starts[1:])
    return starts


def table_shape(batch: BatchLayout, table: Int32s | TableRows) -> tuple[int, int]:
    """That of ``table`` with columns of the null page added up to ``batch.blocks``."""
    rows, columns = table.shape
    return rows, max(columns, batch.blocks)


def place_table(
    table: Int32s | TableRows, shape: tuple[int, int], device: Device | None, into: torch.Tensor | None = None
) -> torch.Tensor:
    """``table`` on the device, with columns of the null page added up to ``shape``; in the place of an earlier one.

    Rows of tables that stay from step to step are picked on the device, which has these tables.
    """
    if isinstance(table, TableRows) and device is not None:
        held = table.tables.on(device)
        rows = send(table.slots % held.shape[0], device)
        if shape[1] > held.shape[1]:
            held = functional.pad(held, (0, shape[1] - held.shape[1]))
        return torch.index_select(held[:, : shape[1]], 0, rows, out=into)  # behind a row's last block there are zeros
    array = np.array(table, order="C")  # a new one: of a single column an old one may have any stride
    if array.shape[1] < shape[1]:
        array = np.pad(array, ((0, 0), (0, shape[1] - array.shape[1])))
    if into is None:
        return send(array, device)
    overwrite(into, array, device)
    return into


def token_slots(batch: BatchLayout, starts: Int32s, table: Int32s | TableRows, block_size: int) -> Int64s:
    """[tokens] of a flat batch: where K and V of each token go, page times block size plus place in the page.

    Tokens that lie before the first position, as there are in a group of kind "cross", go where that does. All are 0
    for a table without columns.
    """
    tokens = int(starts[-1])
    if not table.shape[1]:
        return np.zeros(tokens, np.int64)
    behind = batch.context.astype(np.int64) - starts[1:]
    position: Int64s = np.maximum(np.arange(tokens) + behind.repeat(batch.query), 0)
    row = np.arange(table.shape[0]).repeat(batch.query)
    page: Int64s = blocks_at(table, row, position // block_size).astype(np.int64)
    return page * block_size + position % block_size


def pack(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers of all parts, one part after another, in one array. Each begins at a multiple of ``_ALIGNMENT``:
    kernels may be compiled for memory that does, and would be once more for memory that does not.
    """
    sizes = [_whole(part.size, np.dtype(dtype).itemsize) for part in parts]
    packed = np.zeros(sum(sizes), dtype)
    begin = 0
    for part, size in zip(parts, sizes, strict=True):
        packed[begin : begin + part.size] = part.reshape(-1)
        begin += size
    return packed


def split(memory: torch.Tensor, parts: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Views of ``memory``, which holds packed parts, in the shapes of these."""
    itemsize, sizes = memory.element_size(), [part.size for part in parts]
    pieces = torch.split(memory, [size for own in sizes for size in (own, _whole(own, itemsize) - own)])
    return [piece if part.ndim == 1 else piece.view(part.shape) for piece, part in zip(pieces[::2], parts, strict=True)]


def _whole(count: int, itemsize: int) -> int:
    """How many numbers of ``itemsize`` bytes take up whole multiples of ``_ALIGNMENT``, and no fewer than ``count``."""
    return count + -count % (_ALIGNMENT // itemsize)


def send(host: npt.NDArray[Any], device: Device | None) -> torch.Tensor:
    """``host`` on the device; without a device a tensor on the host that shares its memory."""
    return torch.from_numpy(host) if device is None else staging.send(host, device.torch_device)


def overwrite(tensor: torch.Tensor, host: npt.NDArray[Any], device: Device | None) -> None:
    """Copy ``host`` into a tensor that ``send`` made earlier."""
    staging.overwrite(tensor, host)
