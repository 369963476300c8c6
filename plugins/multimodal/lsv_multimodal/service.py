"""The media of a server's requests: read, prepared in worker processes, cached, placed. Nothing here decodes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec

from lsv.config import EngineConfig
from lsv.media.content_parts import Reference, refusal
from lsv.media.families import find_processor, load_placement, load_transcriber
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import MediaOptions, check_decoded, check_encoded
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, LsvError
from lsv_base.processes.side.turns import NOBODY, Owner
from lsv_multimodal.cache import PreparedCache
from lsv_multimodal.fetching.sources import Sources
from lsv_multimodal.placement import marks_of, place, spell
from lsv_multimodal.worker.messages import Measure, Prepare, SplitAudio
from lsv_multimodal.worker.pool import WorkerPool

_AT_ONCE = 4
"""Items of a request that are read and prepared at the same time: it leaves connections and workers to others."""
Found = TypeVar("Found")

_LONG = 1 << 20
"""Bytes from which hashing moves to a thread."""


class SharedTask:
    """The preparation of an item, and how many requests wait for it."""

    def __init__(self, task: asyncio.Task[Prepared]) -> None:
        self.task = task
        self.waiting = 0


class _Read(msgspec.Struct, frozen=True):
    """An item that is read but not decoded."""

    reference: Reference
    item: Encoded
    key: bytes
    """Identifies the item with its options."""


class LocalMediaService:
    """See ``lsv.media.service.MediaService``: items are prepared in worker processes on this machine.

    Raises ``ConfigError`` for a model that takes text only, ``PluginError`` for what can't be imported.
    """

    def __init__(
        self, config: EngineConfig, catalog: Catalog, options: MediaOptions, *, sources: Sources | None = None
    ) -> None:
        offer = find_processor(config, catalog)
        self.modalities: tuple[Modality, ...] = offer.modalities
        self.options = options
        self.transcriber = load_transcriber(config, catalog, offer)
        self._placement = load_placement(config, catalog, offer)
        self.marks = marks_of(self._placement)
        self._sources = sources or Sources(options)
        self._pool = WorkerPool(config, options)
        self._cache = PreparedCache()
        self._most = config.encoder_cache_tokens
        self._loaded = False
        self._shared: dict[bytes, SharedTask] = {}

    @property
    def allowed(self) -> tuple[Modality, ...]:
        return tuple(modality for modality in self.modalities if self.options.allowed(modality))

    def warm(self) -> None:
        self._pool.warm()

    def keep_off(self, cores: Collection[int]) -> None:
        self._pool.keep_off(cores)

    async def ready(self) -> None:
        if not self._loaded:
            await self._pool.initialize()
            self._loaded = True

    def check(self, references: Sequence[Reference]) -> None:
        for reference in references:
            if reference.modality not in self.modalities:
                raise refusal(reference, self.modalities)
        self.options.check_counts([reference.modality for reference in references])

    async def prepare(
        self,
        references: Sequence[Reference],
        options: Mapping[str, Any],
        owner: Owner = NOBODY,
        salt: bytes = b"",
    ) -> list[Prepared]:
        self.check(references)
        chosen, limits = {**self.options.processor, **options}, self.options.limits
        read = await _few_at_a_time(
            [partial(self._read, reference, chosen, salt) for reference in references],
            lambda one: len(one.item.data),
            lambda size: check_encoded(size, limits),
        )
        if len(read) > 1:  # the limits of a single item apply before decoding anyway
            await _few_at_a_time(
                [partial(self._measure, one, chosen, owner) for one in read],
                lambda size: size,
                lambda size: check_decoded(size, limits),
            )
        return await _few_at_a_time(
            [partial(self._prepare, one, chosen, owner) for one in read],
            lambda item: item.decoded,
            lambda size: check_decoded(size, limits),
        )

    def spell(self, text: str) -> str:
        return spell(text, self._placement)

    def place(self, ids: Sequence[int], items: Sequence[Prepared]) -> Prompt:
        return place(ids, items, self._placement)

    async def split_audio(
        self, audio: Encoded, seconds: float, owner: Owner = NOBODY
    ) -> AsyncGenerator[AudioChunk, None]:
        """Chunks are not cached: a long recording is rarely sent again, and it would evict many other items."""
        command = SplitAudio(audio, seconds, self.options.processor)
        async with aclosing(self._pool.split_audio(command, owner)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        self._pool.close()
        await self._sources.close()

    async def _read(self, reference: Reference, options: Mapping[str, Any], salt: bytes) -> _Read:
        item = await self._sources.read(reference)
        return _Read(reference, item, await _key(reference.modality, item, options, salt))

    async def _measure(self, read: _Read, options: Mapping[str, Any], owner: Owner) -> int:
        """Decoded size of an item in bytes, as far as its headers say."""
        found = self._cache.get(read.key)
        if found is not None:
            return found.decoded
        try:
            return await self._pool.measure(Measure(read.reference.modality, read.item, options), owner)
        except BadRequest as error:
            raise _located(error, read.reference) from None

    async def _prepare(self, read: _Read, options: Mapping[str, Any], owner: Owner) -> Prepared:
        reference, found = read.reference, self._cache.get(read.key)
        if found is None:
            try:
                found = await self._share(read.key, Prepare(reference.modality, read.item, options), owner)
            except BadRequest as error:
                raise _located(error, reference) from None
            self._cache.put(read.key, found)
        count = max(part.count for part in found.processed.parts)
        if count > self._most:
            raise BadRequest(
                f"{reference.where}: the {reference.modality} needs {count} embeddings, over the limit of "
                f"{self._most} (--encoder-cache-tokens): send a smaller one, or a shorter video",
                param=reference.where,
            )
        return found

    async def _share(self, key: bytes, command: Prepare, owner: Owner) -> Prepared:
        """An item is prepared once for all who wait for it, and not at all once nobody does."""
        if key not in self._shared:
            self._shared[key] = SharedTask(asyncio.create_task(self._pool.prepare(command, owner)))
        shared = self._shared[key]
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                del self._shared[key]


async def _few_at_a_time(
    works: Sequence[Callable[[], Coroutine[Any, Any, Found]]],
    size: Callable[[Found], int],
    check: Callable[[int], None],
) -> list[Found]:
    """The results of all works, in order. ``check`` gets the growing sum of sizes; if it raises, the others end."""
    few = asyncio.Semaphore(_AT_ONCE)

    async def run(work: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        async with few:
            return await work()

    tasks = [asyncio.create_task(run(work)) for work in works]
    try:
        total = 0
        for done in asyncio.as_completed(tasks):
            total += size(await done)
            check(total)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


async def _key(modality: Modality, item: Encoded, options: Mapping[str, Any], salt: bytes) -> bytes:
    """The cache key of a tenant's item before decoding."""
    digest = hashlib.sha256(msgspec.json.encode([modality, item.base64, options, salt], order="sorted"))
    if len(item.data) < _LONG:
        digest.update(item.data)
    else:
        await asyncio.to_thread(digest.update, item.data)
    return digest.digest()


def _located(error: LsvError, reference: Reference) -> BadRequest:
    return BadRequest(f"{reference.where}: {error.message}", param=error.param or reference.where)
