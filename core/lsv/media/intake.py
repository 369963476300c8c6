"""The way of media from a request to the engine's message: read, prepared, remembered, placed. Nothing here decodes."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.errors import BadRequest, LsvError
from lsv.media.options import MediaOptions
from lsv.media.orders import Cut, Equip, Prepare, Prepared, Window
from lsv.media.parts import Encoded, Reference, refusal
from lsv.media.placing import Placed, find_processor, load_placement, load_transcriber, place
from lsv.media.pool import Pool
from lsv.media.sources import Sources
from lsv.offers import ProcessorOffer
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality

_REMEMBERED_BYTES = 256 << 20
_LONG = 1 << 20
"""Bytes from which hashing moves to a thread."""


class Memory:
    """Prepared items by what they were made from, up to a number of bytes; the longest unused are forgotten."""

    def __init__(self, limit: int = _REMEMBERED_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._items: OrderedDict[bytes, Prepared] = OrderedDict()

    def get(self, key: bytes) -> Prepared | None:
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: bytes, item: Prepared) -> None:
        if key in self._items:
            return
        self._items[key] = item
        self._size += _size(item)
        while self._size > self._limit:
            _, forgotten = self._items.popitem(last=False)
            self._size -= _size(forgotten)


class Job:
    """An item that is being prepared, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Prepared]) -> None:
        self.task = task
        self.waiting = 0


class Intake:
    """Takes the media of requests for one model. One event loop uses it.

    ``modalities`` are what the model takes, ``transcriber`` is there for one that writes down what is said. Raises
    ``ConfigError`` for a model that takes text only, ``PluginError`` for what can't be imported.
    """

    def __init__(
        self, config: EngineConfig, catalog: Catalog, options: MediaOptions, *, sources: Sources | None = None
    ) -> None:
        offer = find_processor(config, catalog)
        self.modalities: tuple[Modality, ...] = offer.modalities
        self.options = options
        self.transcriber = load_transcriber(config, offer)
        self._placement = load_placement(config, offer)
        self._sources = sources or Sources(options)
        self._pool = Pool(Equip(config, options.limits), seconds=options.side_seconds)
        self._memory = Memory()
        self._most = config.encoder_cache_tokens
        self._loaded = False
        self._jobs: dict[bytes, Job] = {}

    @property
    def allowed(self) -> tuple[Modality, ...]:
        """What the model takes and the operator has not switched off."""
        return tuple(modality for modality in self.modalities if self.options.allowed(modality))

    def warm(self) -> None:
        """Have a side process ready before the first item comes."""
        self._pool.warm()

    def keep_off(self, cores: Collection[int]) -> None:
        """Leave these cores to the model, where it is bound to some of them."""
        self._pool.keep_off(cores)

    async def ready(self) -> None:
        """Wait until the processor has been loaded once. Raises why it can't be."""
        if not self._loaded:
            await self._pool.equip()
            self._loaded = True

    def check(self, references: Sequence[Reference]) -> None:
        """Raises ``BadRequest`` for media that the model does not take, or more than a prompt may hold."""
        for reference in references:
            if reference.modality not in self.modalities:
                raise refusal(reference, self.modalities)
        self.options.check_counts([reference.modality for reference in references])

    async def prepare(self, references: Sequence[Reference], options: Mapping[str, Any]) -> list[Prepared]:
        """All items as the encoder takes them; ``options`` are laid over the operator's. Raises ``BadRequest``."""
        self.check(references)
        chosen = {**self.options.processor, **options}
        tasks = [asyncio.create_task(self._prepare(reference, chosen)) for reference in references]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def place(self, ids: Sequence[int], items: Sequence[Prepared]) -> Placed:
        """The templated prompt with its items in place. Raises ``BadRequest`` where they do not match."""
        return place(ids, items, self._placement)

    async def cut(self, sound: Encoded, seconds: float) -> AsyncGenerator[Window, None]:
        """A sound in pieces of at most ``seconds``, which come as they are ready. Raises ``BadRequest``.

        They are not remembered: whoever sends a long sound again is rare, and it would take the place of much else.
        """
        async with aclosing(self._pool.cut(Cut(sound, seconds, self.options.processor))) as windows:
            async for window in windows:
                yield window

    async def close(self) -> None:
        self._pool.close()
        await self._sources.close()

    async def _prepare(self, reference: Reference, options: Mapping[str, Any]) -> Prepared:
        item = await self._sources.read(reference)
        key = await _key(reference.modality, item, options)
        found = self._memory.get(key)
        if found is None:
            try:
                found = await self._share(key, Prepare(reference.modality, item, options))
            except BadRequest as error:
                raise _located(error, reference) from None
            self._memory.put(key, found)
        if found.processed.count > self._most:
            raise BadRequest(
                f"{reference.where}: the {reference.modality} becomes {found.processed.count} embeddings, and at most "
                f"{self._most} are taken: send a smaller one, or a shorter clip (--encoder-cache-tokens)",
                param=reference.where,
            )
        return found

    async def _share(self, key: bytes, order: Prepare) -> Prepared:
        """An item is prepared once for all who wait for it, and not at all when nobody does any more."""
        if key not in self._jobs:
            self._jobs[key] = Job(asyncio.create_task(self._pool.prepare(order)))
        job = self._jobs[key]
        job.waiting += 1
        try:
            return await asyncio.shield(job.task)
        finally:
            job.waiting -= 1
            if not job.waiting:
                job.task.cancel()
                del self._jobs[key]


def open_intake(config: EngineConfig, catalog: Catalog, options: MediaOptions) -> Intake | None:
    """An intake, or None for a model that takes text only."""
    architectures = [name for offer in catalog.offers(ProcessorOffer) for name in offer.architectures]
    return Intake(config, catalog, options) if config.architecture in architectures else None


async def _key(modality: Modality, item: Encoded, options: Mapping[str, Any]) -> bytes:
    """What names an item before it is decoded."""
    digest = hashlib.sha256(msgspec.json.encode([modality, item.base64, options], order="sorted"))
    if len(item.data) < _LONG:
        digest.update(item.data)
    else:
        await asyncio.to_thread(digest.update, item.data)
    return digest.digest()


def _located(error: LsvError, reference: Reference) -> BadRequest:
    return BadRequest(f"{reference.where}: {error.message}", param=error.param or reference.where)


def _size(item: Prepared) -> int:
    return sum(len(array.data) for array in item.processed.inputs.values()) + 8 * len(item.processed.tokens)
