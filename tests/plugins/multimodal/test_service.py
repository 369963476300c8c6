"""The media service of a server: order, caching, limits, and what is imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from lsv.config import EngineConfig
from lsv.media.content_parts import Reference
from lsv.media.items import Encoded, Prepared
from lsv.media.options import Limits, MediaOptions
from lsv.media.processor import Processed
from lsv.media.service import open_service
from lsv.plugins import Plugins
from lsv_base.errors import BadRequest, ConfigError, PluginError
from lsv_multimodal.cache import PreparedCache
from lsv_multimodal.service import LocalMediaService
from suite.waiting import until

from .conftest import link, solid, sound

MODULE = pytest.mark.asyncio(loop_scope="module")


def values(item: Prepared) -> list[int]:
    return np.frombuffer(item.processed.inputs["ids"].data, np.int64).tolist()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(config: EngineConfig, family: Plugins) -> AsyncIterator[LocalMediaService]:
    found = LocalMediaService(config, family.catalog, MediaOptions(per_prompt={"image": 3, "audio": 1, "video": 0}))
    yield found
    await found.close()


def shown(*colour: int, where: str = "messages[0].content[0]") -> Reference:
    return Reference("image", where, url=link(solid(*colour)))


@pytest.mark.row("F-712")
@MODULE
async def test_items_keep_their_order_and_are_remembered(service: LocalMediaService) -> None:
    two = [shown(1, 2, 3), shown(4, 5, 6)]
    items = await service.prepare(two, {})
    assert [values(item) for item in items] == [[1, 2, 3], [4, 5, 6]]
    again = await service.prepare([two[1], two[0]], {})
    assert again[0] is items[1]
    assert again[1] is items[0]
    assert (await service.prepare(two[:1], {"shift": 1}))[0].hash != items[0].hash
    placed = service.place([5, 259, 6, 259], items)
    assert placed.ids == (5, 258, 259, 259, 259, 258, 6, 258, 259, 259, 259, 258)
    assert [(one.start, one.count, one.hash) for one in placed.media] == [(2, 3, items[0].hash), (8, 3, items[1].hash)]
    with pytest.raises(BadRequest, match="where there is nothing"):
        service.place([259, 259, 259], items)
    with pytest.raises(BadRequest, match="1 of 2 items have no place"):
        service.place([259], items)


@MODULE
async def test_items_are_cached_for_their_tenant_only(service: LocalMediaService) -> None:
    """A shared cache would reveal by timing which media other tenants have sent."""
    (first,) = await service.prepare([shown(7, 7, 7)], {}, salt=b"a")
    (other,) = await service.prepare([shown(7, 7, 7)], {}, salt=b"b")
    assert other is not first
    assert (await service.prepare([shown(7, 7, 7)], {}, salt=b"a"))[0] is first


@MODULE
async def test_an_item_is_prepared_once_for_all_who_wait(service: LocalMediaService) -> None:
    same = [shown(9, 8, 7), shown(9, 8, 7)]
    first, second = await service.prepare(same, {"sleep": 0.1})
    assert first is second
    waiting = [asyncio.create_task(service.prepare(same[:1], {"sleep": 0.2})) for _ in range(3)]
    await until(lambda: [shared.waiting for shared in service._shared.values()] == [3])
    waiting[0].cancel()
    waiting[1].cancel()
    (found,) = await waiting[2]
    assert values(found) == [9, 8, 7]
    failing = [service.prepare([Reference("image", "x", url=link(b"nothing"))], {}) for _ in range(2)]
    assert [type(error) for error in await asyncio.gather(*failing, return_exceptions=True)] == [BadRequest] * 2
    gone = asyncio.create_task(service.prepare(same[:1], {"sleep": 0.05}))
    await until(lambda: service._shared)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert not service._shared


@MODULE
async def test_a_template_may_mix_kinds_in_its_own_order(service: LocalMediaService) -> None:
    heard = Reference("audio", "x", url=link(sound(np.full((1, 8_000), 0.5), 8_000), "audio/wav"))
    items = await service.prepare([shown(1, 1, 1), heard, shown(2, 2, 2)], {})
    placed = service.place([260, 259, 259], items)
    assert [media.modality for media in placed.media] == ["audio", "image", "image"]
    assert [media.hash for media in placed.media] == [items[1].hash, items[0].hash, items[2].hash]


@MODULE
async def test_an_item_that_fails_is_named_by_its_part(service: LocalMediaService) -> None:
    broken = Reference("image", "messages[2].content[1]", url=link(b"nothing"))
    with pytest.raises(BadRequest, match=r"^messages\[2\].content\[1\]: this is not an image") as caught:
        await service.prepare([shown(1, 1, 1), broken], {})
    assert caught.value.param == "messages[2].content[1]"
    with pytest.raises(BadRequest) as caught:
        await service.prepare([shown(1, 1, 1)], {"colour": 1})
    assert caught.value.param == "mm_processor_kwargs"


@MODULE
async def test_decoded_bytes_are_limited_by_request(config: EngineConfig, family: Plugins) -> None:
    options = MediaOptions(limits=Limits(decoded=100))
    service = LocalMediaService(config, family.catalog, options)
    small = [shown(n, 2, 3) for n in range(3)]
    assert [item.decoded for item in await service.prepare(small[:2], {})] == [36, 36]
    for _ in range(2):  # the second time from the cache
        with pytest.raises(BadRequest, match=r"the decoded media have .* over the limit .*--max-decoded-mb"):
            await service.prepare(small, {})
    await service.close()


@MODULE
async def test_all_items_are_measured_before_the_first_is_decoded(config: EngineConfig, family: Plugins) -> None:
    """Even if each item is within the limit. A refused request costs no decoding."""
    service = LocalMediaService(config, family.catalog, MediaOptions(limits=Limits(decoded=4 << 20)))
    decoded: list[object] = []
    prepare = service._pool.prepare

    async def count(*command: object) -> Prepared:
        decoded.append(command)
        return await prepare(*command)

    service._pool.prepare = count  # type: ignore[method-assign]
    large = [Reference("image", f"messages[0].content[{n}]", url=link(solid(n, 0, 0, size=(900, 900)))) for n in (1, 2)]
    with pytest.raises(BadRequest, match=r"decoded media have 5 MiB, over the limit of 4 MiB \(--max-decoded-mb"):
        await service.prepare(large, {})
    assert not decoded
    assert [item.decoded for item in await service.prepare(large[:1], {})] == [900 * 900 * 3]
    broken = Reference("image", "messages[0].content[2]", url=link(b"nothing"))
    with pytest.raises(BadRequest, match=r"^messages\[0\].content\[2\]: this is not an image"):
        await service.prepare([large[0], broken], {})
    assert len(decoded) == 1, "what an item has once it is decoded is known from the cache"
    await service.close()


@MODULE
async def test_items_of_a_request_are_bounded_before_they_are_decoded(config: EngineConfig, family: Plugins) -> None:
    service = LocalMediaService(config, family.catalog, MediaOptions(limits=Limits(bytes=100)))
    with pytest.raises(BadRequest, match=r"encoded media have .* over the limit of .*4 times --max-media-mb"):
        await service.prepare([shown(n, 2, 3) for n in range(5)], {})
    await service.close()


@MODULE
async def test_a_request_leaves_connections_and_workers_to_others(config: EngineConfig, family: Plugins) -> None:
    sources = Waiting()
    service = LocalMediaService(config, family.catalog, MediaOptions(), sources=sources)  # type: ignore[arg-type]
    greedy = asyncio.create_task(service.prepare([shown(n, 0, 0) for n in range(16)], {}))
    while sources.waiting < 4:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sources.waiting == 4
    other = asyncio.create_task(service.prepare([shown(1, 1, 1)], {}))
    while sources.waiting < 5:
        await asyncio.sleep(0)
    for task in (greedy, other):
        task.cancel()
    await asyncio.gather(greedy, other, return_exceptions=True)
    await service.close()


class Waiting:
    """Sources that never answer."""

    def __init__(self) -> None:
        self.waiting = 0

    async def read(self, reference: Reference) -> Encoded:
        self.waiting += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


@pytest.mark.row("F-704")
@MODULE
async def test_counts_are_limited_before_anything_is_read(service: LocalMediaService) -> None:
    with pytest.raises(BadRequest, match=r"may hold 3 items of kind image, got 4 .*--limit-mm-per-prompt"):
        await service.prepare([Reference("image", "x", url="nothing")] * 4, {})
    with pytest.raises(BadRequest, match="may hold 0 items of kind video"):
        await service.prepare([Reference("video", "x", url="nothing")], {})


@MODULE
async def test_items_that_no_encoder_takes_are_refused_by_both_numbers(
    service: LocalMediaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service._most == 16384
    monkeypatch.setattr(service, "_most", 2)
    with pytest.raises(BadRequest, match=r"content\[0\]: the image needs 3 embeddings, over the limit of 2"):
        await service.prepare([shown(1, 2, 3)], {})


@MODULE
async def test_a_service_is_ready_with_its_processor(
    config: EngineConfig, family: Plugins, service: LocalMediaService
) -> None:
    await service.ready()
    broken = LocalMediaService(
        msgspec.structs.replace(config, architecture="MiniBroken"), family.catalog, MediaOptions()
    )
    with pytest.raises(PluginError, match=r"'mini-broken' of plugin mini can't be loaded"):
        await broken.ready()
    await broken.close()


@MODULE
async def test_models_that_take_other_things(config: EngineConfig, family: Plugins) -> None:
    pictures = LocalMediaService(
        msgspec.structs.replace(config, architecture="MiniPictures"), family.catalog, MediaOptions()
    )
    with pytest.raises(BadRequest, match="this model takes text, image, but no audio"):
        pictures.check([Reference("audio", "x")])
    await pictures.close()
    plain = msgspec.structs.replace(config, architecture="LlamaForCausalLM")
    assert open_service(plain, family.catalog, MediaOptions()) is None
    with pytest.raises(ConfigError, match="takes text only"):
        LocalMediaService(plain, family.catalog, MediaOptions())


def test_the_cache_holds_so_many_bytes() -> None:
    cache = PreparedCache(limit=40)
    items = {name: Prepared("image", name, Processed({}, (1, 2), 0, 2)) for name in (b"a", b"b", b"c")}
    for name in (b"a", b"b"):
        cache.put(name, items[name])
    assert cache.get(b"a") is items[b"a"]
    cache.put(b"c", items[b"c"])
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    cache.put(b"d", Prepared("image", b"d", Processed({}, (1,) * 100, 0, 2)))
    assert cache.get(b"d") is None
    assert cache._size == 0


def test_a_server_imports_no_decoder() -> None:
    script = (
        "import sys, lsv.cli.serve, lsv_multimodal.service, lsv_api.app, lsv_offline.llm\n"
        "print([name for name in ('torch', 'transformers', 'PIL', 'av') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
