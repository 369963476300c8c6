"""Chat requests with media through the HTTP API, over an engine that notes what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
import pytest_asyncio

from lsv.config import EngineConfig
from lsv.engine import admission
from lsv.engine.client import Service
from lsv.media.options import MediaOptions
from lsv.plugins import Plugins
from lsv.request.media import Media
from lsv.text.tokenizer import Tokenizer
from lsv_api.app import create_app
from lsv_api.options import ApiOptions
from lsv_api.server import Server
from lsv_multimodal.service import LocalMediaService
from lsv_testing.fakes.client import FakeClient

from .conftest import clip, link, solid, sound

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Site:
    """A server over a fake engine with a real media service, and a client for it."""

    def __init__(self, engine: FakeClient) -> None:
        self.engine = engine
        service, options = Service({"fake": engine}), ApiOptions(port=0)
        self._server = Server(service, options, create_app(service, options))
        self._http = httpx2.AsyncClient(timeout=20)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.run())
        while not self._server.address:
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self._http.aclose()
        self._server.stop()
        self._server.stop()
        await asyncio.wait([self._task])

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self._http.post(self._server.address + path, json=body)

    async def get(self, path: str) -> httpx2.Response:
        return await self._http.get(self._server.address + path)

    async def chat(self, *content: Any, **body: Any) -> httpx2.Response:
        return await self.post("/v1/chat/completions", messages=[{"role": "user", "content": list(content)}], **body)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.engine.requests[-1].prompt.ids

    @property
    def shown(self) -> tuple[Media, ...]:
        return self.engine.requests[-1].prompt.media


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(config: EngineConfig, family: Plugins) -> AsyncIterator[Site]:
    engine = FakeClient(config)
    engine.tokenizer = Tokenizer.load(config.model)
    engine.fit = None  # its vocabulary is the tokenizer's
    engine.media = LocalMediaService(config, family.catalog, MediaOptions(processor={"shift": 1}))
    found = Site(engine)
    await found.start()
    yield found
    await found.stop()
    await engine.media.close()


@pytest.fixture
def site(running: Site) -> Site:
    running.engine.requests.clear()
    return running


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def picture(*colour: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": link(solid(*colour)), "detail": "high"}}


def values(media: Media) -> list[int]:
    return np.frombuffer(media.inputs["ids"].data, np.int64).tolist()


IMAGE = (258, 259, 259, 259, 258)
TONE = sound(np.full((1, 16_000), 0.5), 8_000)


@pytest.mark.row("F-131", "F-159", "F-705", "F-959")
async def test_two_pictures_between_texts(site: Site) -> None:
    answer = await site.chat(text("a"), picture(1, 2, 3), text("b"), picture(4, 5, 6), text("c"), max_tokens=3)
    assert answer.status_code == 200, answer.text
    assert site.prompt == (ord("a"), *IMAGE, ord("b"), *IMAGE, ord("c"), ord(">"))
    assert [(media.start, media.count, values(media)) for media in site.shown] == [(2, 3, [2, 3, 4]), (8, 3, [5, 6, 7])]
    assert answer.json()["usage"]["prompt_tokens"] == 14


async def test_media_of_all_items_count_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [{"content": [picture(1, 2, number)]} for number in range(3)]
    answer = await site.post("/rerank", query="a", documents=documents)
    assert answer.status_code == 200, answer.text
    sent = sum(media.size for prompt in site.engine.requests[-1].prompts for media in prompt.media)
    monkeypatch.setattr(admission, "MOST_MEDIA", sent - 1)
    answer = await site.post("/rerank", query="a", documents=documents)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents[2]")


@pytest.mark.row("F-130", "F-131", "F-159", "F-700")
async def test_every_kind_in_any_order(site: Site) -> None:
    answer = await site.chat(
        {"type": "video_url", "video_url": {"url": link(clip([9, 9, 9, 9]), "video/mp4")}},
        {"type": "audio_url", "audio_url": {"url": link(TONE, "audio/wav")}},
        text("?"),
        {"type": "input_audio", "input_audio": {"data": link(TONE).partition(",")[2], "format": "wav"}},
        {"type": "image_url", "image_url": link(solid(1, 2, 3))},
        mm_processor_kwargs={"shift": 0},
    )
    assert answer.status_code == 200, answer.text
    assert [media.modality for media in site.shown] == ["video", "audio", "audio", "image"]
    assert values(site.shown[3]) == [1, 2, 3]
    assert site.shown[1].hash == site.shown[2].hash
    assert site.prompt[:4] == (258, 261, 261, 258)


@pytest.mark.row("F-129", "F-130")
async def test_media_in_several_messages_and_text_beside(site: Site) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [picture(1, 1, 1)]},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": [text("y"), picture(1, 1, 1)]},
    ]
    answer = await site.post("/v1/chat/completions", messages=messages, stream=True)
    assert answer.status_code == 200
    assert "[DONE]" in answer.text
    assert site.prompt == (ord("s"), *IMAGE, ord("x"), ord("y"), *IMAGE, ord(">"))
    assert site.shown[0].hash == site.shown[1].hash
    counted = await site.post("/tokenize", messages=messages)
    assert tuple(counted.json()["tokens"]) == site.prompt


async def test_continuing_an_answer_about_a_picture(site: Site) -> None:
    messages = [
        {"role": "user", "content": [picture(1, 1, 1)]},
        {"role": "assistant", "content": [text("It is")]},
    ]
    answer = await site.post(
        "/v1/chat/completions", messages=messages, add_generation_prompt=False, continue_final_message=True, echo=True
    )
    assert answer.status_code == 200, answer.text
    assert site.prompt == (*IMAGE, *b"It is")
    assert answer.json()["choices"][0]["message"]["content"].startswith("It is")


@pytest.mark.parametrize(
    ("content", "body", "param", "message"),
    [
        ([{"type": "image_url"}], {}, "messages[0].content[0].image_url", "is required"),
        ([{"type": "picture"}], {}, "messages[0].content[0].type", "expected one of text, image_url"),
        ([text("a"), {"type": "image_url", "image_url": {"url": "data:,x"}}], {}, "messages[0].content[1]", "base64"),
        (
            [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}],
            {},
            "messages[0].content[0]",
            "--allowed-media-domains 127.0.0.1",
        ),
        (
            [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
            {},
            "messages[0].content[0]",
            "--allowed-local-media-path",
        ),
        (
            [{"type": "image_url", "image_url": {"url": link(solid(1, 2, 3)[:50])}}],
            {},
            "messages[0].content[0]",
            "damaged",
        ),
        ([picture(1, 2, 3), text("<image>")], {}, "messages", "where there is nothing"),
        ([text("<video>")], {}, "messages", "where there is nothing"),
        ([picture(1, 2, 3)] * 17, {}, "messages", "may hold 16 items of kind image, got 17"),
        ([picture(1, 2, 3)], {"mm_processor_kwargs": {"colour": 1}}, "mm_processor_kwargs", "unknown"),
        ([picture(1, 2, 3)], {"mm_processor_kwargs": 3}, "mm_processor_kwargs", "expected object"),
        ([picture(1, 2, 3)], {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "would cut"),
        ([text("x" * 505), picture(1, 2, 3)], {"max_tokens": 2}, None, "maximum context length is 512"),
    ],
)
async def test_what_is_refused(site: Site, content: list[Any], body: Any, param: str | None, message: str) -> None:
    answer = await site.chat(*content, **body)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert message in error["message"]
    assert param is None or error["param"] == param
    assert "0x" not in error["message"]
    assert site.engine.requests == []


async def test_models_say_what_they_take(
    site: Site, family: Plugins, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = msgspec.structs.replace(config, architecture="MiniPictures")
    monkeypatch.setattr(site.engine, "media", LocalMediaService(pictures, family.catalog, MediaOptions()))
    heard = {"type": "audio_url", "audio_url": {"url": link(TONE)}}
    error = (await site.chat(text("a"), heard)).json()["error"]
    assert error["message"] == "messages[0].content[1]: this model takes text, image, but no audio"
    monkeypatch.setattr(site.engine, "media", None)
    error = (await site.chat(picture(1, 2, 3))).json()["error"]
    assert error["message"] == "messages[0].content[0]: this model takes text, but no image"
    assert error["param"] == "messages[0].content[0]"
    half = msgspec.structs.replace(site.engine.config, wrapper="WholeModel")
    monkeypatch.setattr(site.engine, "config", half)
    error = (await site.chat(picture(1, 2, 3))).json()["error"]
    assert error["message"].endswith("but no image: only the language model of WholeModel is served")
    error = (await site.chat(text("a"), mm_processor_kwargs={"shift": 1})).json()["error"]
    assert error["message"] == "mm_processor_kwargs: this model takes text only"


async def test_who_leaves_while_a_picture_is_prepared_asks_for_nothing(site: Site) -> None:
    await site.chat(picture(1, 1, 1))
    with pytest.raises(httpx2.ReadTimeout):
        await site._http.post(
            site._server.address + "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": [picture(2, 2, 2)]}],
                "mm_processor_kwargs": {"sleep": 0.3},
            },
            timeout=0.1,
        )
    assert (await site.chat(picture(3, 3, 3))).status_code == 200
    await asyncio.sleep(0.4)
    assert len(site.engine.requests) == 2


async def test_the_list_of_models_tells_what_they_take(
    site: Site, family: Plugins, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def modalities() -> list[str]:
        return (await site.get("/v1/models")).json()["data"][0]["modalities"]

    assert await modalities() == ["text", "image", "audio", "video"]
    without_clips = LocalMediaService(config, family.catalog, MediaOptions(per_prompt={"video": 0}))
    monkeypatch.setattr(site.engine, "media", without_clips)
    assert await modalities() == ["text", "image", "audio"]
