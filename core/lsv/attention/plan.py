"""What the layers of a KV group share in a step: computed in numpy, brought to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lsv.attention import BatchLayout, Int32s
from lsv.platform import Device

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """Everything is int32. The tensors are views of one ``memory``, and ``host`` has the same numbers on the host."""

    host: Int32s
    memory: torch.Tensor

    starts: torch.Tensor
    """[rows + 1]: row r has the tokens ``starts[r]:starts[r + 1]`` of the step."""

    context: torch.Tensor
    """[rows]: tokens of each row, those of earlier steps included."""

    tables: torch.Tensor
    """[rows, blocks]: the pages of each row."""

    slots: torch.Tensor
    """[tokens]: where K and V of each token go, its page times the block size plus its place in the page."""

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
        return self.host[self.rows + 1 : 2 * self.rows + 1]


def make_plan(
    batch: BatchLayout, table: Int32s, block_size: int, device: Device | None, into: PagedPlan | None = None
) -> PagedPlan:
    """The plan of a flat batch over the block table [rows, blocks], on the host if there is no device.

    It has tensors of its own or, given ``into``, is that plan of a batch of the same shape: its tensors stay in place.
    """
    starts, table = row_starts(batch), pad_table(batch, table)
    parts = (starts, batch.context, table, token_slots(batch, starts, table, block_size))
    host = pack(parts, np.int32)
    if into is None:
        memory = send(host, device)
        return PagedPlan(host, memory, *split(memory, parts))
    assert (len(host), table.shape) == (len(into.host), into.tables.shape), "the plan is of a batch of another shape"
    into.host[:] = host
    overwrite(into.memory, host, device)
    return into


def row_starts(batch: BatchLayout) -> Int32s:
    """[rows + 1]: where the places of each row begin in the token dimension, and where the last one's end."""
    if batch.span:
        return np.arange(len(batch.query) + 1, dtype=np.int32) * batch.span
    starts = np.zeros(len(batch.query) + 1, np.int32)
    batch.query.cumsum(out=starts[1:])
    return starts


def pad_table(batch: BatchLayout, table: Int32s) -> Int32s:
    """``table`` with columns of the null page added up to ``batch.blocks``."""
    missing = batch.blocks - table.shape[1]
    return table if missing <= 0 else np.concatenate((table, np.zeros((len(table), missing), np.int32)), axis=1)


def token_slots(batch: BatchLayout, starts: Int32s, table: Int32s, block_size: int) -> Int64s:
    """[tokens] of a flat batch: where K and V of each token go, page times block size plus place in the page.

    Tokens that lie before the first position, as there are in a group of kind "cross", go where that does. All are 0
    for a table without columns.
    """
    tokens = int(starts[-1])
    if not table.shape[1]:
        return np.zeros(tokens, np.int64)
    behind = batch.context.astype(np.int64) - starts[1:]
    position: Int64s = np.maximum(np.arange(tokens) + behind.repeat(batch.query), 0)
    row = np.arange(len(table)).repeat(batch.query)
    page: Int64s = table[row, position // block_size].astype(np.int64)
    return page * block_size + position % block_size


def pack(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers of all parts, one part after another, in one array."""
    return np.concatenate([part.reshape(-1) for part in parts], dtype=dtype, casting="unsafe")


def split(memory: torch.Tensor, parts: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Views of ``memory``, which holds packed parts, in the shapes of these."""
    pieces = torch.split(memory, [part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def send(host: npt.NDArray[Any], device: Device | None) -> torch.Tensor:
    """``host`` on the device; without a device a tensor on the host that shares its memory."""
    staged = _stage(host, device)
    return staged if device is None else staged.to(device.torch_device, non_blocking=True)


def overwrite(tensor: torch.Tensor, host: npt.NDArray[Any], device: Device | None) -> None:
    """Copy ``host`` into a tensor that ``send`` made earlier."""
    tensor.copy_(_stage(host, device), non_blocking=True)


def _stage(host: npt.NDArray[Any], device: Device | None) -> torch.Tensor:
    """``host`` where the device can fetch it beside its other work."""
    staged = torch.from_numpy(host)
    return staged.pin_memory() if device is not None and device.pinned else staged
