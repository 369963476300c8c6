"""What one request may ask for: every bound is checked before work is done, and honest requests are below it."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lsv_api.http import bodies, fields, shape
from lsv_api.http.bodies import decode_body
from lsv_api.http.shape import check_shape
from lsv_api.limits import Limits
from lsv_api.options import _LIMITS, ApiOptions
from lsv_api.plugin import lsv_settings
from lsv_api.preparing import LONG, SHORT, PreparingPool
from lsv_api.records.requests import ChatRequest, CompletionRequest
from lsv_base.errors import BadRequest, TooLarge
from lsv_base.processes.side.turns import NOBODY
from lsv_testing.fakes.client import FakeClient, fake_config
from suite.sites import Site, StartSite
from suite.waiting import until

FEW = Limits(nesting=3, texts=10, lists=10, values=6, text_bytes=500)


def refused(reply: Any, status: int, param: str | None, match: str) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert match in error["message"]


# The body


@pytest.mark.parametrize(
    "good",
    [
        b'{"a":[[1]]}',
        b'{"a":"[[[[[[[{{{{{{{{"}',
        b'{"a":"\\"[[[[[[[[[[\\\\"}',
        b'{"a":"[[[[\\\\","b":[[1]]}',
        b"[1,2,3,4,5,6,7]",
        b'{"a":",,,,,,,,,,,,,,,"}',
        b'["1","2","3","4","5","6","7"]',
    ],
)
def test_shapes_that_are_taken(good: bytes) -> None:
    json.loads(good)
    check_shape(good, FEW)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"a":[[[1]]]}', "nested too deeply"),
        (b'[{"a":[{"b":1}]}]', "nested too deeply"),
        (b'{"a":"\\\\","b":[[[1]]],"c":"\\""}', "nested too deeply"),
        (b"[1,2,3,4,5,6,7,8]", "too many values"),
        (b"[[],[],[],[],[]\n,[],[],[],[],[]]", "too many values"),
        (b"[[] [] [] [] [] [] [] [] [] [] []]", "too many lists and objects"),
        (b'["1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11"]', "too many strings"),
    ],
)
def test_shapes_that_are_refused(bad: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        check_shape(bad, FEW)


@pytest.mark.parametrize("nested", [b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65])
async def test_nesting(site: Site, nested: bytes) -> None:
    body = b'{"prompt": "a", "metadata": ' + nested + b"}"
    refused(
        await site.http.post("/v1/completions", content=body), 400, None, "nested too deeply; the limit is 64 levels"
    )


def test_shapes_are_those_that_parsing_finds() -> None:
    chance = random.Random(0)

    def make(levels: int) -> Any:
        kind = chance.choice(["text", "number", "list", "object"]) if levels else "text"
        text = "".join(chance.choices('a"\\[]{},:é', k=chance.randint(0, 8)))
        if kind in ("text", "number"):
            return text if kind == "text" else chance.random()
        items = [make(levels - 1) for _ in range(chance.randint(0, 3))]
        return items if kind == "list" else {f"{text}{index}": item for index, item in enumerate(items)}

    def measure(value: Any) -> tuple[int, int]:
        """Levels, and lists and objects."""
        if not isinstance(value, list | dict):
            return 0, 0
        inner = [measure(one) for one in (value.values() if isinstance(value, dict) else value)]
        return 1 + max((levels for levels, _ in inner), default=0), 1 + sum(lists for _, lists in inner)

    def taken(data: bytes, **limits: int) -> bool:
        with suppress(BadRequest):
            check_shape(data, Limits(**limits))
            return True
        return False

    for _ in range(500):
        value = [make(5)]
        data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()
        levels, lists = measure(value)
        assert taken(data, nesting=levels, lists=lists)
        assert not taken(data, nesting=levels - 1)
        assert not taken(data, lists=lists - 1)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_escapes_are_found_wherever_a_body_is_cut(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "SLICE", size)
    check_shape(b'{"a":"\\\\\\"[[[[[[\\\\\\\\","b":["\\"[[[[\\\\"]}', FEW)
    with pytest.raises(BadRequest, match="nested too deeply"):
        check_shape(b'{"a":"\\\\","b":[[["\\""]]],"c":"\\\\"}', FEW)


def test_nothing_is_parsed_of_a_body_that_holds_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.msgspec.json, "decode", None)
    with pytest.raises(BadRequest, match="too many lists"):
        decode_body(b'{"prompt": [' + b"[]," * 40_000 + b"1]}", CompletionRequest)


@pytest.mark.row("F-1023")
def test_unknown_fields_are_not_parsed() -> None:
    """A value that nobody reads is skipped, and one that is compared with neutral values need not be long."""
    body = {"prompt": "a", "metadata": [{"data": ""}] * 1000, "whatever": [[]] * 1000, "tools": [], "guided_json": None}
    assert decode_body(json.dumps(body).encode(), CompletionRequest).prompt == "a"
    with pytest.raises(BadRequest, match="prediction is not available"):
        decode_body(json.dumps({"prompt": "a", "prediction": {"x": "y" * 5000}}).encode(), CompletionRequest)


@pytest.mark.row("F-1023")
async def test_unknown_fields_are_counted(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    many = {f"f{number:06d}": 1 for number in range(64)}
    assert (await site.complete(**many)).status_code == 200
    (line,) = [record.getMessage() for record in caplog.records if "unknown" in record.getMessage()]
    assert len(line) < 200
    refused(await site.complete(**many, another=1), 400, None, "has 65 unknown fields")


def test_nobody_looks_for_what_thousands_of_fields_may_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields.difflib, "get_close_matches", None)
    with pytest.raises(BadRequest, match="20000 unknown fields"):
        decode_body(json.dumps({"prompt": "a", **{f"f{n}": 1 for n in range(20_000)}}).encode(), CompletionRequest)


async def test_bodies_without_media_are_smaller(start: StartSite) -> None:
    site = await start(limits=Limits(body_bytes=4000, text_bytes=1000))
    refused(await site.chat(messages=[{"role": "user", "content": "x" * 1000}]), 413, None, "--api-max-text-mb")


def test_media_do_not_count_as_text() -> None:
    url = "data:image/png;base64," + "A" * (1 << 17)
    part: dict[str, Any] = {"type": "image_url", "image_url": url}
    body = {"messages": [{"role": "user", "content": [part]}]}
    limits = Limits(text_bytes=1000)
    assert decode_body(json.dumps(body).encode(), ChatRequest, limits)
    body["documents"] = [{"data": "A" * (1 << 17)}]  # type: ignore[list-item]
    with pytest.raises(TooLarge, match="without its media"):
        decode_body(json.dumps(body).encode(), ChatRequest, limits)


# Parameters


async def test_answers_are_counted_before_anything_is_tokenised(start: StartSite) -> None:
    engine = FakeClient()
    site = await start(engine)
    engine.tokenizer = SimpleNamespace(frame=engine.tokenizer.frame)  # type: ignore[assignment]  # encodes nothing
    refused(await site.complete(prompt=["a"] * 200, n=128), 400, "n", "prompts times answers to each are 25600")
    refused(await site.complete(prompt=["a"] * 1025), 400, "prompt", "--api-max-prompts")
    refused(await site.complete(n=129), 400, "n", "at most 128")
    refused(await site.chat(n=129), 400, "n", "at most 128")
    refused(await site.complete(best_of=10**30), 400, "best_of", "at most 128")
    refused(await site.complete(stop=["x"] * 65), 400, "stop", "--api-max-stop-strings")
    refused(await site.chat(bad_words=["x"] * 129), 400, "bad_words", "--api-max-bad-words")
    ids = list(range(260)) * 5
    many = await site.complete(prompt=["a"] * 1000, allowed_token_ids=ids)
    refused(many, 400, "allowed_token_ids", "1300 token ids for each of 1000 answers")


async def test_answers_must_fit_the_queue(start: StartSite) -> None:
    site = await start(FakeClient(fake_config(max_queue=10)))
    assert (await site.complete(prompt=["a"] * 5, n=2)).status_code == 200
    refused(await site.complete(prompt=["a"] * 4, n=3), 400, "n", "at most 10 (--api-max-candidates, --max-queue)")


async def test_lists_of_ids(site: Site) -> None:
    assert (await site.complete(allowed_token_ids=[5, 5, 6], stop_token_ids=[7, 7])).status_code == 200
    params = site.engine.requests[-1].sampling
    assert (params.allowed_token_ids, params.stop_token_ids) == ((5, 6), (7,))
    for name in ("allowed_token_ids", "stop_token_ids"):
        refused(await site.complete(**{name: [5] * 261}), 400, name, "at most 260 token ids")


async def test_salts_are_hashed(site: Site) -> None:
    await site.complete(cache_salt="s" * 1024)
    await site.complete()
    salts = [request.salt for request in site.engine.requests]
    assert [len(salt) for salt in salts] == [32, 0]
    refused(await site.complete(cache_salt="s" * 1025), 400, "cache_salt", "length <= 1024")


async def test_prompts_behind_one_that_is_too_long_are_not_tokenised(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = site.engine.tokenizer.encode
    monkeypatch.setattr(
        site.engine.tokenizer, "encode", lambda text, **how: (encoded.append(text), encode(text, **how))[1]
    )
    refused(await site.complete(prompt=["a", "b" * 512, "c"]), 400, "prompt", "your prompt has 513 tokens")
    refused(await site.complete(prompt=["a", "b" * 513, "c"]), 400, "prompt", "your prompt has 513 characters")
    assert encoded == ["a", "b" * 512, "a"]


async def test_texts_that_need_not_fit(start: StartSite) -> None:
    site = await start(limits=Limits(uncut=1000))
    for size, status in ((600, 200), (512 * 8, 200), (512 * 8 + 1, 400)):
        truncated = await site.complete(prompt="b" * size, truncate_prompt_tokens=5)
        counted = await site.post("/tokenize", prompt="b" * size)
        assert (truncated.status_code, counted.status_code) == (status, status)
    refused(counted, 400, "prompt", "4097 characters are too many to be tokenised: at most 4096")
    refused(truncated, 400, "prompt", "4097 characters")
    long = [{"role": "user", "content": "b" * 5000}]
    refused(await site.chat(messages=long, truncate_prompt_tokens=5), 400, "messages", "too many to be tokenised")


async def test_options(start: StartSite) -> None:
    site = await start(limits=Limits(messages=2, prompts=3, n=4, candidates=5, stop_strings=6, bad_words=7))
    refused(await site.chat(messages=[{"role": "user", "content": "x"}] * 3), 400, "messages", "--api-max-messages")
    refused(await site.complete(prompt=["a"] * 4), 400, "prompt", "at most 3")
    refused(await site.complete(n=5), 400, "n", "at most 4")
    refused(await site.complete(prompt=["a"] * 3, n=2), 400, "n", "at most 5")
    refused(await site.complete(stop=["a"] * 7), 400, "stop", "at most 6")
    refused(await site.complete(bad_words=["a"] * 8), 400, "bad_words", "at most 7")


def test_settings_have_the_defaults_of_the_record() -> None:
    settings = {setting.name: setting.default for setting in lsv_settings()}
    named = {name: settings[name] for name, _ in _LIMITS.values() if name in settings}
    assert ApiOptions.from_settings(named).limits == Limits()
    assert ApiOptions.from_settings({"max_body_mb": 2, "api.max_nesting": 9}).limits == Limits(
        body_bytes=2 << 20, nesting=9
    )


# Work beside the event loop


async def test_short_work_is_done_at_once() -> None:
    assert await PreparingPool(2).run(NOBODY, SHORT - 1, threading.get_ident) == threading.get_ident()
    assert await PreparingPool(2).run(NOBODY, SHORT, threading.get_ident) != threading.get_ident()


@pytest.mark.row("F-343")
@pytest.mark.parametrize("leave", [False, True])
async def test_long_work_leaves_a_thread_to_the_others(leave: bool) -> None:
    """Also where whoever asked for it has left: the work goes on."""
    pool, go_on = PreparingPool(3), threading.Event()
    long = [asyncio.create_task(pool.run(NOBODY, LONG, go_on.wait)) for _ in range(5)]
    await asyncio.sleep(0)
    if leave:
        for task in long[:2]:
            task.cancel()
    assert await asyncio.wait_for(pool.run(NOBODY, SHORT, lambda: "short"), 5) == "short"
    go_on.set()
    assert (await asyncio.gather(*long, return_exceptions=True)).count(True) == 5 - 2 * leave
    assert await asyncio.gather(*[pool.run(NOBODY, LONG, lambda: 1) for _ in range(5)]) == [1] * 5


async def test_requests_take_turns(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of many prompts stands behind another request's prompt, but for the part that is under way."""
    monkeypatch.setattr("lsv_api.openai.prompts.BATCH", SHORT)
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def encode(text: str, **_: Any) -> list[int]:
        begun.set()
        go_on.wait(5)
        order.append(text[0])
        return [1]

    pool = PreparingPool(1)
    msgspec.structs.force_setattr(site.app.ctx.api, "pool", pool)
    monkeypatch.setattr(site.engine.tokenizer, "encode", encode)
    many = asyncio.create_task(site.complete(prompt=["m" * SHORT] * 10, truncate_prompt_tokens=1))
    await until(begun.is_set)
    one = asyncio.create_task(site.complete(prompt=["o" * SHORT], truncate_prompt_tokens=1))
    await until(lambda: pool._short_turns.waiting(""))
    go_on.set()
    assert [reply.status_code for reply in await asyncio.gather(many, one)] == [200, 200]
    assert order.index("o") <= 2
