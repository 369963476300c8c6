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

from lsv.devices.staging import overwrite, send
from lsv.nn.step import Step
from lsv.worker.inputs import Batch

Int64s = npt.NDArray[np.int64]

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
