"""Media on their way to an engine in another process: they lie in shared memory, and the message refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec

from lsv.engine.messages import Submit
from lsv.media.shared import SUPPORTED, SharedMemory
from lsv.request.media import Array, Media, Stored
from lsv.request.prompt import Prompt

LEAST = 1 << 16
"""Bytes of media from which on a request shares them: below, a message is as quick."""


@asynccontextmanager
async def shared_media(submit: Submit, *, near: bool = True) -> AsyncIterator[Submit]:
    """The message to send: its media lie in shared memory until the block ends, if they are long and the engine is
    ``near``, on this machine.

    Copying them there keeps neither the event loop nor the engine waiting; the worker that encodes them reads them.
    """
    if not SUPPORTED or not near or sum(array.size for array in _arrays(submit.spec.prompts)) < LEAST:
        yield submit
        return
    with SharedMemory("lsv-media") as memory:
        yield await asyncio.to_thread(share_media, submit, memory)


def share_media(submit: Submit, memory: SharedMemory) -> Submit:
    """The same message, its media moved to ``memory``, which must stay open until the request has ended."""
    data = [array.data for array in _arrays(submit.spec.prompts) if isinstance(array.data, bytes)]
    stored = iter(memory.append(data))
    prompts = tuple(_refer(prompt, stored) for prompt in submit.spec.prompts)
    return msgspec.structs.replace(submit, spec=msgspec.structs.replace(submit.spec, prompts=prompts))


def _arrays(prompts: tuple[Prompt, ...]) -> Iterator[Array]:
    for prompt in prompts:
        for media in prompt.media:
            yield from media.inputs.values()


def _refer(prompt: Prompt, stored: Iterator[Stored]) -> Prompt:
    if not prompt.media:
        return prompt
    return msgspec.structs.replace(prompt, media=tuple(_refer_item(media, stored) for media in prompt.media))


def _refer_item(media: Media, stored: Iterator[Stored]) -> Media:
    inputs = {
        name: msgspec.structs.replace(array, data=next(stored)) if isinstance(array.data, bytes) else array
        for name, array in media.inputs.items()
    }
    return msgspec.structs.replace(media, inputs=inputs)
