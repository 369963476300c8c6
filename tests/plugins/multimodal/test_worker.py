"""Worker processes: what they prepare, what they refuse, and that they can be killed at any time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from lsv.config import EngineConfig
from lsv.media.items import Encoded, Prepared
from lsv.media.options import Limits, MediaOptions
from lsv.plugins import Plugins
from lsv_base.errors import BadRequest, LsvError, PluginError, RequestFailed
from lsv_base.processes.confinement.probe import find_measures
from lsv_base.processes.side.process import Broken, SideProcess
from lsv_multimodal.preprocessing import Preprocessor
from lsv_multimodal.worker.messages import Command, Init, Prepare, Reply
from lsv_multimodal.worker.pool import WorkerPool, media_worker
from suite.processes import is_running
from suite.waiting import until, wait_until

from .conftest import clip, solid, sound

MODULE = pytest.mark.asyncio(loop_scope="module")
Worker = SideProcess[Command, Reply]


def values(item: Prepared) -> list[int]:
    return np.frombuffer(item.processed.inputs["ids"].data, np.int64).tolist()


def picture(data: bytes, **options: Any) -> Prepare:
    return Prepare("image", Encoded(data), options)


def worker_of(config: EngineConfig, options: MediaOptions = MediaOptions()) -> Worker:  # noqa: B008 - frozen
    return SideProcess(media_worker(options), Init(config, options.limits))


@pytest.fixture(scope="module")
def process(config: EngineConfig) -> Iterator[Worker]:
    found = worker_of(config)
    yield found
    found.end()


@pytest.fixture
def worker(process: Worker) -> Worker:
    if not process.running:
        process.start()
    return process


@pytest.mark.row("F-714")
def test_items_are_decoded_and_prepared(worker: Worker) -> None:
    shown = worker.ask(picture(solid(65, 66, 67)), 20)
    assert (shown.modality, values(shown), shown.processed.tokens) == ("image", [65, 66, 67], (258, 259, 259, 259, 258))
    assert values(worker.ask(picture(solid(65, 66, 67), shift=1), 20)) == [66, 67, 68]
    heard = sound(np.repeat([[0.3, 0.7]], 16_000, axis=1).reshape(1, -1), 16_000)
    assert values(worker.ask(Prepare("audio", Encoded(heard)), 20)) == pytest.approx([30, 70], abs=3)
    seen = Prepare("video", Encoded(clip([50, 60, 70, 80])), {"fps": 4, "shift": 1})
    assert values(worker.ask(seen, 20)) == pytest.approx([51, 61, 71, 81], abs=3)


def test_faults_fail_one_item(worker: Worker) -> None:
    wrong: list[tuple[Prepare, type[LsvError], str]] = [
        (picture(b"nothing"), BadRequest, "not an image"),
        (Prepare("image", Encoded(b"!!", base64=True)), BadRequest, "base64 is wrong"),
        (picture(solid(1, 2, 3), colour=1), BadRequest, "unknown"),
        (picture(solid(1, 2, 3), fail=True), RequestFailed, r"could not be prepared \(RuntimeError\)"),
    ]
    for order, kind, message in wrong:
        with pytest.raises(kind, match=message) as caught:
            worker.ask(order, 20)
        assert "0x" not in caught.value.message
    assert values(worker.ask(picture(solid(65, 66, 67)), 20)) == [65, 66, 67]


def test_what_takes_too_long_or_breaks_its_process_is_refused(worker: Worker) -> None:
    worker.ask(picture(solid(1, 2, 3)), 20)
    began = time.monotonic()
    with pytest.raises(Broken, match=r"^took more than 0.2 s"):
        worker.ask(picture(solid(1, 2, 3), sleep=60), 0.2)
    assert time.monotonic() - began < 5
    assert not worker.running
    worker.start()
    assert values(worker.ask(picture(solid(65, 66, 67)), 20)) == [65, 66, 67]
    with pytest.raises(Broken, match="was killed by signal 6"):
        worker.ask(picture(solid(1, 2, 3), crash=True), 20)
    assert not worker.running


def test_workers_are_confined_by_all_that_the_system_has(worker: Worker) -> None:
    worker.initialize()
    here = {measure.name for measure in find_measures() if measure.held}
    assert {measure.name for measure in worker.measures if measure.held} == here


def test_a_bomb_ends_the_worker_alone(config: EngineConfig) -> None:
    """A small file that takes more memory than a worker has, past the estimate that is made before decoding."""
    limits = Limits(memory=64 << 20)
    worker: Worker = SideProcess(media_worker(MediaOptions(limits=limits)), Init(config, Limits()))
    worker.start()
    bomb = solid(1, 2, 3, 4, size=(4000, 4000), mode="RGBA")
    assert len(bomb) < 100_000
    with pytest.raises(Broken, match="took more than 64 MiB of memory"):
        worker.ask(picture(bomb), 60)
    assert not worker.running
    worker.start()
    assert values(worker.ask(picture(solid(65, 66, 67)), 20)) == [65, 66, 67]
    worker.end()


def test_what_the_memory_can_not_hold_is_refused_before_it_is_decoded(config: EngineConfig) -> None:
    worker = worker_of(config, MediaOptions(limits=Limits(memory=64 << 20)))
    worker.start()
    with pytest.raises(BadRequest, match=r"4000 x 4000 pixels takes 106 MiB, over the limit of 64 \(--media-memory-mb"):
        worker.ask(picture(solid(1, 2, 3, 4, size=(4000, 4000), mode="RGBA")), 60)
    assert worker.running
    worker.end()


def test_workers_lower_their_priority_and_end_with_their_parent(config: EngineConfig, tmp_path: Path) -> None:
    script = (
        "import sys, time, msgspec; from lsv.config import EngineConfig; from lsv.media.options import Limits\n"
        "from lsv_multimodal.worker.messages import Init; from lsv_multimodal.worker.pool import media_worker\n"
        "from lsv_base.processes.side.process import SideProcess; from lsv.media.options import MediaOptions\n"
        "from pathlib import Path\n"
        "config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)\n"
        "worker = SideProcess(media_worker(MediaOptions()), Init(config, Limits()))\n"
        "worker.start(); print(worker._child.pid, flush=True); time.sleep(60)\n"
    )
    (tmp_path / "config").write_bytes(msgspec.json.encode(config))
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "config")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 20
        while os.getpriority(os.PRIO_PROCESS, child) < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert os.getpriority(os.PRIO_PROCESS, child) >= 10
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(child))


def test_a_processor_that_can_not_be_loaded(config: EngineConfig) -> None:
    worker = worker_of(msgspec.structs.replace(config, architecture="MiniBroken"))
    for _ in range(2):
        worker.start()
        with pytest.raises(PluginError, match=r"'mini-broken' of plugin mini can't be loaded from mini_media.nothing"):
            worker.ask(picture(solid(1, 2, 3)), 20)
        assert not worker.running
    worker.end()


def test_hashes_name_content_preparation_and_model(config: EngineConfig, family: Plugins, tmp_path: Path) -> None:
    def hash_of(data: bytes, modality: Any = "image", config: EngineConfig = config, **options: Any) -> bytes:
        return Preprocessor(config, family.catalog, Limits()).prepare(modality, Encoded(data), options).hash

    one = hash_of(solid(1, 2, 3))
    assert len(one) == 32
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"architectures": ["MiniForCausalLM"]}))
    assert one == hash_of(solid(1, 2, 3, 255, mode="RGBA"))
    changed = [
        hash_of(solid(1, 2, 4)),
        hash_of(solid(1, 2, 3, size=(3, 4))),
        hash_of(solid(1, 2, 3), shift=1),
        hash_of(solid(1, 2, 3), config=msgspec.structs.replace(config, model=str(other))),
        hash_of(solid(1, 2, 3), config=msgspec.structs.replace(config, architecture="MiniPictures")),
        hash_of(solid(1, 2, 3), config=msgspec.structs.replace(config, overrides={"x": 1})),
    ]
    (other / "preprocessor_config.json").write_text("{}")
    changed.append(hash_of(solid(1, 2, 3), config=msgspec.structs.replace(config, model=str(other))))
    assert len({one, *changed}) == 1 + len(changed)
    still = clip([7] * 4)
    assert hash_of(still, "video", fps=4) != hash_of(still, "video", fps=2)
    assert hash_of(still, "video", fps=4) == hash_of(still, "video", num_frames=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(config: EngineConfig) -> AsyncIterator[WorkerPool]:
    found = WorkerPool(config, MediaOptions(prepare_seconds=20), size=2)
    yield found
    found.close()


@MODULE
async def test_a_pool_works_beside_the_loop(pool: WorkerPool) -> None:
    pool.warm()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    items = await asyncio.gather(*(pool.prepare(picture(solid(n, n, n), sleep=0.1)) for n in range(4)))
    ticking.cancel()
    assert [values(item) for item in items] == [[n] * 3 for n in range(4)]
    assert ticks > 10


@MODULE
async def test_who_goes_away_frees_the_process_when_its_work_is_done(pool: WorkerPool) -> None:
    await pool.prepare(picture(solid(1, 1, 1)))
    left = [asyncio.create_task(pool.prepare(picture(solid(2, 2, 2), sleep=0.2))) for _ in range(5)]
    await until(lambda: len(pool._pool._busy) == 2)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert values(await pool.prepare(picture(solid(3, 3, 3)))) == [3, 3, 3]
    assert len(pool._pool._idle) + len(pool._pool._busy) == 2


@MODULE
async def test_a_pool_leaves_cores_to_the_model(pool: WorkerPool) -> None:
    await pool.prepare(picture(solid(1, 2, 3)))
    worker, allowed = pool._pool._idle[-1], os.sched_getaffinity(0)
    assert worker._child is not None
    pool.keep_off(allowed)
    assert os.sched_getaffinity(worker._child.pid) == allowed, "where no core is left, all are shared"
    if len(allowed) < 2:
        pytest.skip("there is one core")
    pool.keep_off({min(allowed)})
    assert os.sched_getaffinity(worker._child.pid) == allowed - {min(allowed)}
    worker.start()
    assert os.sched_getaffinity(worker._child.pid) == allowed - {min(allowed)}, "so does what comes in its place"


@MODULE
async def test_a_pool_replaces_what_was_killed(pool: WorkerPool) -> None:
    with pytest.raises(BadRequest, match="broke the process"):
        await pool.prepare(picture(solid(1, 1, 1), crash=True))
    items = await asyncio.gather(*(pool.prepare(picture(solid(n, n, n), sleep=0.05)) for n in range(2)))
    assert [values(item) for item in items] == [[0] * 3, [1] * 3]
    busy = asyncio.create_task(pool.prepare(picture(solid(1, 1, 1), sleep=60)))
    await until(lambda: pool._pool._busy)
    pool.close()
    with pytest.raises(LsvError):
        await busy
