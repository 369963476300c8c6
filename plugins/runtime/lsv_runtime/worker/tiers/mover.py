"""Carries out what plans say of copies between the device's KV cache and what is behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from lsv.config import EngineConfig
from lsv.kv.tiers.records import Load, Save
from lsv.plugins.catalog import Catalog
from lsv.scheduler.plan import StepPlan
from lsv.transports import Transport
from lsv.transports.making import make_transport
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.devices.device import Device
from lsv_runtime.worker.tiers.host import HostMemory
from lsv_runtime.worker.tiers.writer import Writer

_log = logging.getLogger(__name__)

_BATCH = 16 << 20
"""Bytes that pass through the device's own memory at a time."""
_READERS = 4
_WORD = torch.int32
"""What pages are moved as: the time that takes goes by elements, and bytes are many. Every device knows it."""

T = TypeVar("T", Save, Load)

Agree = Callable[[Tensor], Tensor]
"""The sum over all ranks of a float32 tensor."""


def make_mover(
    config: EngineConfig, catalog: Catalog, device: Device, rank: int, communicator: Communicator | None
) -> BlockMover | None:
    """None where contents stay on the device. ``communicator`` joins all ranks."""
    if config.offload is None:
        return None
    agree = None if communicator is None else communicator.all_reduce
    return BlockMover(device, make_transport(config, catalog, rank), agree)


class BlockMover:
    """All of a page is copied, whatever layers have in it: the mover knows no layout.

    Copies are given to the device in the order of its steps, so a block is read before a later step writes it, and
    written before this one reads it. What the transport brings is waited for.
    """

    def __init__(self, device: Device, transport: Transport | None, agree: Agree | None) -> None:
        """``agree`` is None for a single rank."""
        self._device, self._transport, self._agree = device, transport, agree
        self._writer = None if transport is None else Writer(transport)
        self._readers: ThreadPoolExecutor | None = None
        self._host: HostMemory | None = None

    def carry_out(self, plan: StepPlan, memory: Sequence[Tensor]) -> tuple[int, ...]:
        """Which of the plan's loads failed, on any rank. ``memory`` is all of the cache, uint8 [pages, bytes] each."""
        if plan.revoke and self._writer is not None:
            self._writer.remove(plan.revoke)
        page = sum(part.shape[1] for part in memory)
        host = self._host = self._host or HostMemory(page, pinned=self._device.pinned)
        for saves in _batches(plan.saves, page):
            self._save(saves, memory, host)
        near = [load for load in plan.loads if load.cells]
        for loads in _batches(near, page):
            self._load(loads, memory, host)
        far = [index for index, load in enumerate(plan.loads) if not load.cells]
        lost = self._fetch([plan.loads[index] for index in far], memory, page) if far else []
        return tuple(far[place] for place in lost)

    def flush(self) -> None:
        """Wait until the transport has all that it was given; for tests."""
        if self._writer is not None:
            self._writer.flush()

    def forget(self) -> None:
        """Let go of host memory, of which the books say that it holds nothing."""
        self._host = None

    def close(self) -> None:
        """Hand over what is left, and let go of host memory and the transport."""
        if self._writer is not None:
            self._writer.close()
        if self._readers is not None:
            self._readers.shutdown()
        if self._transport is not None:
            self._transport.close()
        self.forget()

    def _save(self, saves: Sequence[Save], memory: Sequence[Tensor], host: HostMemory) -> None:
        pages = self._gather(memory, [block for save in saves for block in save.blocks])
        places = [place for place, cell in _cells(saves) if cell is not None]
        cells = [cell for _, cell in _cells(saves) if cell is not None]
        if cells:
            chosen = pages if len(places) == len(pages) else pages[self._index(places)]
            for run, room in host.runs(cells):
                room.copy_(chosen[run], non_blocking=self._device.pinned)
        if self._writer is not None and any(save.keep for save in saves):
            self._keep(self._writer, saves, pages)

    def _keep(self, writer: Writer, saves: Sequence[Save], pages: Tensor) -> None:
        if self._device.pinned:
            copies = torch.empty(pages.shape, dtype=torch.uint8, pin_memory=True)
            copies.copy_(pages, non_blocking=True)
        else:
            copies = pages.cpu()
        contents = torch.split(copies, [len(save.blocks) for save in saves])
        kept = [(save.key, content) for save, content in zip(saves, contents, strict=True) if save.keep]
        writer.put([key for key, _ in kept], [content for _, content in kept], self._device.event())

    def _load(self, loads: Sequence[Load], memory: Sequence[Tensor], host: HostMemory) -> None:
        blocks = [block for load in loads for block in load.blocks]
        cells = [cell for load in loads for cell in load.cells]
        place = self._device.torch_device
        pages = torch.empty(len(blocks), sum(part.shape[1] for part in memory), dtype=torch.uint8, device=place)
        for run, room in host.runs(cells):
            pages[run].copy_(room, non_blocking=self._device.pinned)
        self._scatter(memory, blocks, pages)

    def _fetch(self, loads: Sequence[Load], memory: Sequence[Tensor], page: int) -> list[int]:
        """Load what the transport keeps; which of it could not be had."""
        assert self._transport is not None, "there is no transport"
        self._readers = self._readers or ThreadPoolExecutor(_READERS, thread_name_prefix="kv-reader")
        lost: list[bool] = []
        for some in _batches(loads, page):
            rows = torch.empty(
                sum(len(load.blocks) for load in some), page, dtype=torch.uint8, pin_memory=self._device.pinned
            )
            contents = torch.split(rows, [len(load.blocks) for load in some])
            found = list(self._readers.map(self._get, [load.key for load in some], contents))
            lost += [not one for one in found]
            there = [load for load, one in zip(some, found, strict=True) if one]
            if there:
                had = rows if all(found) else torch.cat([contents[place] for place, one in enumerate(found) if one])
                sent = had.to(self._device.torch_device, non_blocking=self._device.pinned)
                self._scatter(memory, [block for load in there for block in load.blocks], sent)
        flags = torch.tensor(lost, dtype=torch.float32, device=self._device.torch_device)
        if self._agree is not None:
            flags = self._agree(flags)
        return [place for place, flag in enumerate(flags.tolist()) if flag]

    def _get(self, key: bytes, content: Tensor) -> bool:
        assert self._transport is not None, "there is no transport"
        try:
            return self._transport.get(key, content.numpy().reshape(-1).data)
        except Exception:
            _log.exception("a part of the KV cache could not be fetched")
            return False

    def _gather(self, memory: Sequence[Tensor], blocks: Sequence[int]) -> Tensor:
        """The pages of blocks, uint8 [blocks, page]."""
        index = self._index(blocks)
        parts = [part.index_select(0, index) for part in _in_words(memory)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).view(torch.uint8)

    def _scatter(self, memory: Sequence[Tensor], blocks: Sequence[int], pages: Tensor) -> None:
        index, first, parts = self._index(blocks), 0, _in_words(memory)
        pages = pages.view(parts[0].dtype)
        for part in parts:
            part.index_copy_(0, index, pages[:, first : first + part.shape[1]])
            first += part.shape[1]

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._device.torch_device)


def _in_words(memory: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same memory in words, where all pages are made of whole ones."""
    size = _WORD.itemsize
    numbers = (number for part in memory for number in (*part.shape[1:], part.stride(0), part.storage_offset()))
    return memory if any(number % size for number in numbers) else [part.view(_WORD) for part in memory]


def _cells(saves: Sequence[Save]) -> Iterator[tuple[int, int | None]]:
    """The cell of each block, by its place among all of them; None for those that get none."""
    cells = (cell for save in saves for cell in (save.cells or (None,) * len(save.blocks)))
    return enumerate(cells)


def _batches(moves: Sequence[T], page: int) -> Iterator[Sequence[T]]:
    """Moves of at most ``_BATCH`` bytes together, if each is no larger."""
    batch: list[T] = []
    blocks = 0
    for move in moves:
        if batch and (blocks + len(move.blocks)) * page > _BATCH:
            yield batch
            batch, blocks = [], 0
        batch.append(move)
        blocks += len(move.blocks)
    if batch:
        yield batch
