"""Side processes: what they prepare, what they refuse, and that they can be killed at any time."""

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
from lsv.errors import BadRequest, ConfigError, LsvError, PluginError, RequestFailed
from lsv.media.intake import Intake, Memory, open_intake
from lsv.media.options import Limits, MediaOptions
from lsv.media.orders import Equip, Prepare, Prepared
from lsv.media.parts import Encoded, Reference
from lsv.media.pool import Pool, Side
from lsv.media.processor import Processed
from lsv.media.workshop import Workshop
from lsv.plugins import Plugins

from .conftest import clip, link, solid, sound

MODULE = pytest.mark.asyncio(loop_scope="module")


def values(item: Prepared) -> list[int]:
    return np.frombuffer(item.processed.inputs["ids"].data, np.int64).tolist()


def picture(data: bytes, **options: Any) -> Prepare:
    return Prepare("image", Encoded(data), options)


@pytest.fixture(scope="module")
def process(config: EngineConfig) -> Iterator[Side]:
    found = Side(Equip(config, Limits()))
    yield found
    found.end()


@pytest.fixture
def side(process: Side) -> Side:
    if not process.running:
        process.start()
    return process


def test_items_are_decoded_and_prepared(side: Side) -> None:
    shown = side.prepare(picture(solid(65, 66, 67)), 20)
    assert (shown.modality, values(shown), shown.processed.tokens) == ("image", [65, 66, 67], (258, 259, 259, 259, 258))
    assert values(side.prepare(picture(solid(65, 66, 67), shift=1), 20)) == [66, 67, 68]
    heard = sound(np.repeat([[0.3, 0.7]], 16_000, axis=1).reshape(1, -1), 16_000)
    assert values(side.prepare(Prepare("audio", Encoded(heard)), 20)) == pytest.approx([30, 70], abs=3)
    seen = Prepare("video", Encoded(clip([50, 60, 70, 80])), {"fps": 4, "shift": 1})
    assert values(side.prepare(seen, 20)) == pytest.approx([51, 61, 71, 81], abs=3)


def test_faults_fail_one_item(side: Side) -> None:
    wrong: list[tuple[Prepare, type[LsvError], str]] = [
        (picture(b"nothing"), BadRequest, "no picture"),
        (Prepare("image", Encoded(b"!!", base64=True)), BadRequest, "base64 is wrong"),
        (picture(solid(1, 2, 3), colour=1), BadRequest, "unknown"),
        (picture(solid(1, 2, 3), fail=True), RequestFailed, r"could not be prepared \(RuntimeError\)"),
    ]
    for order, kind, message in wrong:
        with pytest.raises(kind, match=message) as caught:
            side.prepare(order, 20)
        assert "0x" not in caught.value.message
    assert values(side.prepare(picture(solid(65, 66, 67)), 20)) == [65, 66, 67]


def test_what_takes_too_long_or_breaks_its_process_is_refused(side: Side) -> None:
    side.prepare(picture(solid(1, 2, 3)), 20)
    began = time.monotonic()
    with pytest.raises(BadRequest, match=r"took more than 0.2 s \(--media-timeout\)"):
        side.prepare(picture(solid(1, 2, 3), sleep=60), 0.2)
    assert time.monotonic() - began < 5
    assert not side.running
    side.start()
    assert values(side.prepare(picture(solid(65, 66, 67)), 20)) == [65, 66, 67]
    with pytest.raises(BadRequest, match="it broke the process that tried"):
        side.prepare(picture(solid(1, 2, 3), crash=True), 20)
    assert not side.running


def test_side_processes_step_back_and_end_with_their_parent(config: EngineConfig, tmp_path: Path) -> None:
    script = (
        "import sys, time, msgspec; from lsv.config import EngineConfig; from lsv.media.pool import Side, Equip\n"
        "from lsv.media.options import Limits; from pathlib import Path\n"
        "side = Side(Equip(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig), Limits()))\n"
        "side.start(); print(side._child.pid, flush=True); time.sleep(60)\n"
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
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("the side process outlived its parent")


def test_a_processor_that_can_not_be_loaded(config: EngineConfig) -> None:
    side = Side(Equip(msgspec.structs.replace(config, architecture="MiniBroken"), Limits()))
    for _ in range(2):
        side.start()
        with pytest.raises(PluginError, match=r"'mini-broken' of plugin mini can't be loaded from mini_media.nothing"):
            side.prepare(picture(solid(1, 2, 3)), 20)
        assert not side.running
    side.end()


def test_hashes_name_content_preparation_and_model(config: EngineConfig, family: Plugins, tmp_path: Path) -> None:
    def hash_of(data: bytes, modality: Any = "image", config: EngineConfig = config, **options: Any) -> bytes:
        return Workshop(config, family.catalog, Limits()).prepare(Prepare(modality, Encoded(data), options)).hash

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
async def pool(config: EngineConfig) -> AsyncIterator[Pool]:
    found = Pool(Equip(config, Limits()), seconds=20, size=2)
    yield found
    found.close()


@MODULE
async def test_a_pool_works_beside_the_loop(pool: Pool) -> None:
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
async def test_who_goes_away_frees_the_process_when_its_work_is_done(pool: Pool) -> None:
    await pool.prepare(picture(solid(1, 1, 1)))
    left = [asyncio.create_task(pool.prepare(picture(solid(2, 2, 2), sleep=0.2))) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert values(await pool.prepare(picture(solid(3, 3, 3)))) == [3, 3, 3]
    assert len(pool._idle) + len(pool._busy) == 2


@MODULE
async def test_a_pool_leaves_cores_to_the_model(pool: Pool) -> None:
    await pool.prepare(picture(solid(1, 2, 3)))
    side, allowed = pool._idle[-1], os.sched_getaffinity(0)
    assert side._child is not None
    pool.keep_off(allowed)
    assert os.sched_getaffinity(side._child.pid) == allowed, "where no core is left, all are shared"
    if len(allowed) < 2:
        pytest.skip("there is one core")
    pool.keep_off({min(allowed)})
    assert os.sched_getaffinity(side._child.pid) == allowed - {min(allowed)}
    side.start()
    assert os.sched_getaffinity(side._child.pid) == allowed - {min(allowed)}, "so does what comes in its place"


@MODULE
async def test_a_pool_replaces_what_was_killed(pool: Pool) -> None:
    with pytest.raises(BadRequest, match="broke the process"):
        await pool.prepare(picture(solid(1, 1, 1), crash=True))
    items = await asyncio.gather(*(pool.prepare(picture(solid(n, n, n), sleep=0.05)) for n in range(2)))
    assert [values(item) for item in items] == [[0] * 3, [1] * 3]
    busy = asyncio.create_task(pool.prepare(picture(solid(1, 1, 1), sleep=60)))
    await asyncio.sleep(0.05)
    pool.close()
    with pytest.raises(LsvError):
        await busy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def intake(config: EngineConfig, family: Plugins) -> AsyncIterator[Intake]:
    found = Intake(config, family.catalog, MediaOptions(per_prompt={"image": 3, "audio": 1, "video": 0}))
    yield found
    await found.close()


def shown(*colour: int, where: str = "messages[0].content[0]") -> Reference:
    return Reference("image", where, url=link(solid(*colour)))


@MODULE
async def test_items_keep_their_order_and_are_remembered(intake: Intake) -> None:
    two = [shown(1, 2, 3), shown(4, 5, 6)]
    items = await intake.prepare(two, {})
    assert [values(item) for item in items] == [[1, 2, 3], [4, 5, 6]]
    again = await intake.prepare([two[1], two[0]], {})
    assert again[0] is items[1]
    assert again[1] is items[0]
    assert (await intake.prepare(two[:1], {"shift": 1}))[0].hash != items[0].hash
    placed = intake.place([5, 259, 6, 259], items)
    assert placed.ids == (5, 258, 259, 259, 259, 258, 6, 258, 259, 259, 259, 258)
    assert [(one.start, one.count, one.hash) for one in placed.media] == [(2, 3, items[0].hash), (8, 3, items[1].hash)]
    with pytest.raises(BadRequest, match="where there is nothing"):
        intake.place([259, 259, 259], items)
    with pytest.raises(BadRequest, match="1 of 2 items have no place"):
        intake.place([259], items)


@MODULE
async def test_an_item_is_prepared_once_for_all_who_wait(intake: Intake) -> None:
    same = [shown(9, 8, 7), shown(9, 8, 7)]
    first, second = await intake.prepare(same, {"sleep": 0.1})
    assert first is second
    waiting = [asyncio.create_task(intake.prepare(same[:1], {"sleep": 0.2})) for _ in range(3)]
    await asyncio.sleep(0.1)
    waiting[0].cancel()
    waiting[1].cancel()
    (found,) = await waiting[2]
    assert values(found) == [9, 8, 7]
    failing = [intake.prepare([Reference("image", "x", url=link(b"nothing"))], {}) for _ in range(2)]
    assert [type(error) for error in await asyncio.gather(*failing, return_exceptions=True)] == [BadRequest] * 2
    gone = asyncio.create_task(intake.prepare(same[:1], {"sleep": 0.05}))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert not intake._jobs


@MODULE
async def test_a_template_may_mix_kinds_in_its_own_order(intake: Intake) -> None:
    heard = Reference("audio", "x", url=link(sound(np.full((1, 8_000), 0.5), 8_000), "audio/wav"))
    items = await intake.prepare([shown(1, 1, 1), heard, shown(2, 2, 2)], {})
    placed = intake.place([260, 259, 259], items)
    assert [media.modality for media in placed.media] == ["audio", "image", "image"]
    assert [media.hash for media in placed.media] == [items[1].hash, items[0].hash, items[2].hash]


@MODULE
async def test_an_item_that_fails_is_named_by_its_part(intake: Intake) -> None:
    broken = Reference("image", "messages[2].content[1]", url=link(b"nothing"))
    with pytest.raises(BadRequest, match=r"^messages\[2\].content\[1\]: this is no picture") as caught:
        await intake.prepare([shown(1, 1, 1), broken], {})
    assert caught.value.param == "messages[2].content[1]"
    with pytest.raises(BadRequest) as caught:
        await intake.prepare([shown(1, 1, 1)], {"colour": 1})
    assert caught.value.param == "mm_processor_kwargs"


@MODULE
async def test_counts_are_limited_before_anything_is_read(intake: Intake) -> None:
    with pytest.raises(BadRequest, match=r"may hold 3 items of kind image, got 4; .*--limit-mm-per-prompt"):
        await intake.prepare([Reference("image", "x", url="nothing")] * 4, {})
    with pytest.raises(BadRequest, match="may hold 0 items of kind video"):
        await intake.prepare([Reference("video", "x", url="nothing")], {})


@MODULE
async def test_items_that_no_encoder_takes_are_refused_by_both_numbers(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert intake._most == 16384
    monkeypatch.setattr(intake, "_most", 2)
    with pytest.raises(BadRequest, match=r"content\[0\]: the image becomes 3 embeddings, and at most 2 are taken"):
        await intake.prepare([shown(1, 2, 3)], {})


@MODULE
async def test_an_intake_is_ready_with_its_processor(config: EngineConfig, family: Plugins, intake: Intake) -> None:
    await intake.ready()
    broken = Intake(msgspec.structs.replace(config, architecture="MiniBroken"), family.catalog, MediaOptions())
    with pytest.raises(PluginError, match=r"'mini-broken' of plugin mini can't be loaded"):
        await broken.ready()
    await broken.close()


@MODULE
async def test_models_that_take_other_things(config: EngineConfig, family: Plugins) -> None:
    pictures = Intake(msgspec.structs.replace(config, architecture="MiniPictures"), family.catalog, MediaOptions())
    with pytest.raises(BadRequest, match="this model takes text, image, but no audio"):
        pictures.check([Reference("audio", "x")])
    await pictures.close()
    plain = msgspec.structs.replace(config, architecture="LlamaForCausalLM")
    assert open_intake(plain, family.catalog, MediaOptions()) is None
    with pytest.raises(ConfigError, match="takes text only"):
        Intake(plain, family.catalog, MediaOptions())


def test_memory_holds_so_many_bytes() -> None:
    memory = Memory(limit=40)
    items = {name: Prepared("image", name, Processed({}, (1, 2), 0, 2)) for name in (b"a", b"b", b"c")}
    for name in (b"a", b"b"):
        memory.put(name, items[name])
    assert memory.get(b"a") is items[b"a"]
    memory.put(b"c", items[b"c"])
    assert [memory.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    memory.put(b"d", Prepared("image", b"d", Processed({}, (1,) * 100, 0, 2)))
    assert memory.get(b"d") is None
    assert memory._size == 0


def test_a_server_imports_no_decoder() -> None:
    script = (
        "import sys, lsv.cli.serve, lsv.media.intake, lsv_api.app, lsv.llm\n"
        "print([name for name in ('torch', 'transformers', 'PIL', 'av') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
