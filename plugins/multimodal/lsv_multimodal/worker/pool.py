"""The media workers of a server: a pool of side processes, and what it means for a request when one breaks."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from lsv.config import EngineConfig
from lsv.media.items import AudioChunk, Prepared
from lsv.media.options import MediaOptions
from lsv.request.media import Modality
from lsv_base.errors import BadRequest
from lsv_base.processes.confinement.terms import Terms
from lsv_base.processes.side.pool import SidePool
from lsv_base.processes.side.process import Broken, Kind
from lsv_base.processes.side.turns import NOBODY, Owner
from lsv_multimodal.worker.messages import Command, Init, Measure, Measured, Prepare, Reply, SplitAudio

_OPTIONS = {"time": " (--media-timeout)", "memory": " (--media-memory-mb)"}


def media_worker(options: MediaOptions) -> Kind:
    """What a side process for media is."""
    terms = Terms(options.limits.memory, options.prepare_seconds, options.confinement)
    return Kind("prepares media", "lsv_multimodal.worker.main", Reply, terms)


class WorkerPool:
    """Prepares items, as ``SidePool``: all it raises is an ``LsvError``."""

    def __init__(self, config: EngineConfig, options: MediaOptions, *, size: int | None = None) -> None:
        self._pool: SidePool[Command, Reply] = SidePool(
            media_worker(options),
            Init(config, options.limits),
            seconds=options.prepare_seconds,
            size=size or _default_size(),
        )

    def warm(self) -> None:
        self._pool.warm()

    def keep_off(self, cores: Collection[int]) -> None:
        self._pool.keep_off(cores)

    async def initialize(self) -> None:
        """Wait until the first process has loaded the processor; raises why it can't."""
        await self._pool.initialize()

    async def prepare(self, command: Prepare, owner: Owner = NOBODY) -> Prepared:
        """An item, prepared. Raises ``BadRequest`` where it costs its process its life."""
        reply = await self._ask(command, owner)
        assert isinstance(reply, Prepared), "an item is prepared or refused"
        return reply

    async def measure(self, command: Measure, owner: Owner = NOBODY) -> int:
        """Decoded size of an item in bytes. Raises ``BadRequest`` as ``prepare``."""
        reply = await self._ask(command, owner)
        assert isinstance(reply, Measured), "an item is measured or refused"
        return reply.size

    async def _ask(self, command: Measure | Prepare, owner: Owner) -> Reply:
        try:
            return await self._pool.ask(command, owner)
        except Broken as broken:
            raise _refusal(command.modality, broken) from None

    async def split_audio(self, command: SplitAudio, owner: Owner = NOBODY) -> AsyncGenerator[AudioChunk, None]:
        """The chunks as they come."""
        try:
            async with aclosing(self._pool.ask_all(command, _is_last, owner)) as replies:
                async for reply in replies:
                    assert isinstance(reply, AudioChunk), "audio is split or refused"
                    yield reply
        except Broken as broken:
            raise _refusal("audio", broken) from None

    def close(self) -> None:
        """Kill all processes; what is in progress fails."""
        self._pool.close()


def _is_last(reply: Reply) -> bool:
    return not isinstance(reply, AudioChunk) or reply.last


def _refusal(modality: Modality, broken: Broken) -> BadRequest:
    if broken.reason == "crash":
        return BadRequest(f"the {modality} can't be decoded: it broke the process that tried, which {broken.how}")
    return BadRequest(f"decoding and preparing the {modality} {broken.how}{_OPTIONS[broken.reason]}")


def _default_size() -> int:
    """A quarter of the cores: at least two, so that one long video does not keep images waiting, and at most four."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))
