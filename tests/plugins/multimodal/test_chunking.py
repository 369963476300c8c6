"""Long audio in chunks, in the worker process and on the way to whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from lsv.config import EngineConfig
from lsv.media.items import AudioChunk, Encoded
from lsv.media.options import MediaOptions
from lsv.media.processor import Audio
from lsv.plugins import Plugins
from lsv_base.errors import BadRequest
from lsv_base.processes.side.process import Broken, SideProcess
from lsv_multimodal.chunking import split_audio
from lsv_multimodal.service import LocalMediaService
from lsv_multimodal.worker.messages import Command, Init, Reply, SplitAudio
from lsv_multimodal.worker.pool import media_worker

from .conftest import sound

MODULE = pytest.mark.asyncio(loop_scope="module")
RATE = 8000


def noise(*parts: tuple[float, float], rate: int = RATE) -> Audio:
    """Seconds of noise, each so loud."""
    chance = np.random.default_rng(0)
    pieces = [chance.uniform(-loud, loud, round(seconds * rate)) for seconds, loud in parts]
    return Audio(np.concatenate(pieces).astype(np.float32), rate)


def seconds(given: Audio, most: float = 30.0) -> list[tuple[float, float]]:
    return [(first / given.rate, last / given.rate) for first, last in split_audio(given, most)]


def test_short_sounds_stay_whole() -> None:
    assert seconds(noise((0.01, 1))) == [(0, 0.01)]
    assert seconds(noise((30, 1))) == [(0, 30)]


def test_cuts_are_where_it_is_quiet() -> None:
    pauses = noise((10, 0.5), (1, 0.0), (16.5, 0.5), (0.4, 0.01), (1, 0.5), (0.2, 0.02), (20, 0.5))
    (_, first), (second, last) = seconds(pauses)
    assert first == second == pytest.approx(27.7, abs=0.1)
    assert last == pytest.approx(49.1)


def test_silence_is_cut_in_its_middle() -> None:
    assert seconds(noise((26, 0.5), (2, 0.0), (10, 0.5)))[0][1] == pytest.approx(27, abs=0.05)


@pytest.mark.parametrize("length", [30.01, 30.5, 59.9, 61, 95, 300])
@pytest.mark.parametrize("most", [30.0, 2.0, 0.2])
def test_chunks_follow_one_another_and_are_neither_long_nor_scraps(length: float, most: float) -> None:
    given = noise((length * most / 30, 0.5))
    chunks = split_audio(given, most)
    assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])]
    assert chunks[-1][1] == len(given.samples)
    sizes = [(last - first) / RATE for first, last in chunks]
    assert max(sizes) <= most
    assert min(sizes) >= most / 30 - 1 / RATE
    assert min(sizes[:-1]) >= most * 5 / 6 - most / 30


def levels(chunk: AudioChunk) -> list[int]:
    return np.frombuffer(chunk.item.processed.inputs["ids"].data, np.int64).tolist()


@pytest.fixture(scope="module")
def recording() -> bytes:
    """A second each of 30 %, 70 %, 50 % and 90 % of full scale, then half a second of nothing."""
    samples = np.repeat([0.3, 0.7, 0.5, 0.9, 0.0], 16_000)[:72_000]
    return sound(samples[None], 16_000)


def test_chunks_are_prepared_one_after_the_other(config: EngineConfig, recording: bytes) -> None:
    options, taken = MediaOptions(), []
    process: SideProcess[Command, Reply] = SideProcess(media_worker(options), Init(config, options.limits))
    process.start()

    def split(command: SplitAudio, seconds: float) -> None:
        def take(chunk: Reply) -> bool:
            assert isinstance(chunk, AudioChunk)
            taken.append(chunk)
            return not chunk.last

        process.ask_all(command, take, seconds)

    try:
        for _ in range(2):
            taken.clear()
            split(SplitAudio(Encoded(recording), 2.0, {"shift": 1}), 20)
            assert [chunk.last for chunk in taken] == [False] * (len(taken) - 1) + [True]
            assert [chunk.start for chunk in taken] == [0, *(chunk.stop for chunk in taken[:-1])]
            assert {chunk.total for chunk in taken} == {4.5}
            assert levels(taken[0])[0] == pytest.approx(31, abs=2)
        with pytest.raises(BadRequest, match="damaged"):
            split(SplitAudio(Encoded(b"no sound at all"), 2.0), 20)
        with pytest.raises(Broken, match=r"took more than 0.3 s"):
            split(SplitAudio(Encoded(recording), 2.0, {"sleep": 60}), 0.3)
        assert not process.running
    finally:
        process.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(config: EngineConfig, family: Plugins) -> AsyncIterator[LocalMediaService]:
    found = LocalMediaService(config, family.catalog, MediaOptions())
    yield found
    await found.close()


@MODULE
async def test_chunks_reach_whoever_asked(service: LocalMediaService, recording: bytes) -> None:
    async def ask() -> list[float]:
        return [chunk.stop async for chunk in service.split_audio(Encoded(recording), 2.0)]

    one, other = await asyncio.gather(ask(), ask())
    assert one == other
    assert one[-1] == 4.5
    assert len(one) > 2


@MODULE
async def test_whoever_leaves_early_leaves_the_process_in_order(service: LocalMediaService, recording: bytes) -> None:
    chunks = service.split_audio(Encoded(recording), 0.5)
    assert (await anext(chunks)).start == 0
    await chunks.aclose()
    assert [chunk.total async for chunk in service.split_audio(Encoded(recording), 30.0)] == [4.5]
    with pytest.raises(BadRequest, match="damaged"):
        _ = [chunk async for chunk in service.split_audio(Encoded(b"RIFF"), 30.0)]


@MODULE
async def test_a_family_that_does_not_transcribe_has_no_transcriber(service: LocalMediaService) -> None:
    assert service.transcriber is None
