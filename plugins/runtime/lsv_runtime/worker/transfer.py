"""A batch's numbers on the device: all in one piece of memory, so that one copy brings them.

In it lie int64, with as many places each as the step has rows: the places of tokens that are not known yet, the slots
they are sampled for, and the slots that this step samples for; then ids, positions and the rows whose states are
wanted. ``Step`` knows the last three; the others are found before them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv_runtime.devices.staging import overwrite, send
from lsv_runtime.nn.step import Step, TokenAdapters
from lsv_runtime.worker.inputs import Batch

Int64s = npt.NDArray[np.int64]

TILE = 16
"""Tokens that go through an adapter together."""
_LISTS = 3
_ALIGNED = 8
"""Each part begins at a multiple of so many numbers: kernels are compiled for pointers that are aligned."""


def send_batch(batch: Batch, wanted: Int64s, place: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """``ids``, ``positions`` and ``logits_rows`` of a step."""
    memory = send(_pack(batch, wanted), place)
    first = _LISTS * _room(batch)
    ids = memory[first : first + batch.ids.size]
    first += _aligned(batch.ids.size)
    positions = memory[first : first + batch.positions.size].view(batch.positions.shape)
    first += _aligned(batch.positions.size)
    return ids, positions, memory[first : first + len(wanted)]


def send_adapters(adapters: Int64s, place: torch.device) -> TokenAdapters:
    """The adapters of a step's tokens, given one more than each slot, and the tokens in tiles of one adapter each."""
    tiles: list[Int64s] = []
    slots: list[int] = []
    for number in np.unique(adapters[adapters > 0]).tolist():
        tokens = np.flatnonzero(adapters == number)
        padding = np.full(-len(tokens) % TILE, len(adapters), np.int64)
        tiles.append(np.concatenate((tokens, padding)).reshape(-1, TILE))
        slots += [number - 1] * len(tiles[-1])
    own = (adapters - 1).astype(np.int32)
    return TokenAdapters(send(own, place), send(np.concatenate(tiles), place), send(np.array(slots, np.int64), place))


def overwrite_batch(step: Step, batch: Batch, wanted: Int64s) -> None:
    """Put a batch of the same shape in the place of that which a step was made of by ``send_batch``."""
    packed = _pack(batch, wanted)
    overwrite(step.ids.as_strided((len(packed),), (1,), 0), packed)


def awaited(step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
    """The places of the tokens that are not known yet, and the slots they are sampled for."""
    return _list(step, 0, len(batch.unknown)), _list(step, 1, len(batch.awaited))


def sampled(step: Step, count: int) -> Tensor:
    """The slots that the step samples for, so many of them."""
    return _list(step, 2, count)


def _list(step: Step, place: int, count: int) -> Tensor:
    return step.ids.as_strided((count,), (1,), place * (step.ids.storage_offset() // _LISTS))


def _pack(batch: Batch, wanted: Int64s) -> Int64s:
    lists = (batch.unknown, batch.awaited, batch.sampled)
    parts = [*((some, _room(batch)) for some in lists), *((some, some.size) for some in (batch.ids, batch.positions))]
    packed = np.zeros(sum(_aligned(size) for _, size in parts) + len(wanted), np.int64)
    first = 0
    for some, size in (*parts, (wanted, len(wanted))):
        packed[first : first + some.size] = some.reshape(-1)
        first += _aligned(size)
    return packed


def _room(batch: Batch) -> int:
    """Places of each list."""
    return _aligned(len(batch.layout.query))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
