"""Answers as they are written, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lsv_base.errors import BadRequest, LsvError, Unauthorized, Unavailable
from lsv_webui.api import Abilities, Api, refusal
from lsv_webui.chat.answer import write
from lsv_webui.chat.conversation import Chat, Message, ToolCall
from lsv_webui.chat.request_fields import NUMBERS
from lsv_webui.chat.thinking import part
from lsv_webui.events import read_events

from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


MADE: list[Api] = []


@pytest.fixture(autouse=True)
async def close_apis() -> AsyncIterator[None]:
    """Close what ``connect`` has made."""
    yield
    while MADE:
        await MADE.pop().close()


def connect(server: str, key: str | None = None) -> Api:
    MADE.append(Api(server, key))
    return MADE[-1]


async def answered(api: Api, body: dict[str, Any] = BODY, key: str | None = None) -> Message:
    message = Message(role="assistant")
    async for _ in write(api, body, message, asyncio.Event(), key):
        pass
    return message


async def aborted(api, before: int) -> None:
    """Wait until the engine has aborted one more request."""
    for _ in range(100):
        if len(api.engine.aborted) > before:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the request was not aborted")


async def test_an_answer_has_its_text_and_figures(api) -> None:
    api.engine.pace = 0.005
    message = await answered(connect(api.url))
    assert message.text == api.engine.answer
    assert message.error == ""
    assert message.note.startswith("first token ")
    assert message.note.endswith(f"tok/s · {len(api.engine.answer) + 1} tokens")


async def test_an_empty_answer_says_so(api) -> None:
    api.engine.answer = ""
    assert (await answered(connect(api.url))).note == "an empty answer"


async def test_a_cut_answer_says_so(api) -> None:
    message = await answered(connect(api.url), {**BODY, "max_tokens": 3})
    assert message.note.endswith("cut off at the length limit")


async def test_stopping_aborts_the_request(api) -> None:
    api.engine.pace, api.engine.answer = 0.01, "word " * 500
    message, stop, before = Message(role="assistant"), asyncio.Event(), len(api.engine.aborted)
    async for _ in write(connect(api.url), {**BODY, "max_tokens": 400}, message, stop):
        if message.text:
            stop.set()
    assert 0 < len(message.text) < 400
    assert message.note.endswith(f" · {len(message.text)} tokens · stopped")
    await aborted(api, before)


async def test_stopping_ends_a_wait_for_the_first_token(api) -> None:
    api.engine.pace = 60.0
    message, stop, before = Message(role="assistant"), asyncio.Event(), len(api.engine.aborted)
    asked = len(api.engine.requests)

    async def stop_once_asked() -> None:
        while len(api.engine.requests) == asked:
            await asyncio.sleep(0.01)
        stop.set()

    stopping = asyncio.create_task(stop_once_asked())
    async for _ in write(connect(api.url), BODY, message, stop):
        pass
    await stopping
    assert (message.text, message.note, message.error) == ("", "stopped", "")
    await aborted(api, before)


async def test_slow_drawing_does_not_slow_the_figures(api) -> None:
    api.engine.pace, api.engine.answer = 0.002, "x" * 100
    message = Message(role="assistant")
    async for _ in write(connect(api.url), BODY, message, asyncio.Event()):
        await asyncio.sleep(0.3)
    speed = float(message.note.split(" · ")[1].split()[0])
    assert 30 < speed < 600


async def test_missing_and_wrong_keys_are_distinguished(locked) -> None:
    missing, wrong = await answered(connect(locked.url)), await answered(connect(locked.url), key="wrong")
    assert missing.error == "The server needs an API key. Enter yours under Settings."
    assert wrong.error == "The server does not accept this API key. Enter another one under Settings."
    pages = await answered(connect(locked.url, "wrong"))
    assert pages.error == "The server does not accept the API key of this page. Enter yours under Settings."


async def test_errors_are_plain(api) -> None:
    long = await answered(connect(api.url), {"messages": [{"role": "user", "content": "x" * 2000}]})
    assert long.error.startswith("This conversation is too long for the model.")
    assert "512" in long.error
    api.engine.failure = LsvError("the row was not finite")
    broken = await answered(connect(api.url))
    assert "not finite" in broken.error


async def test_a_visitors_key_stands_in_for_the_pages(locked) -> None:
    with pytest.raises(Unauthorized):
        await connect(locked.url).models()
    assert [model.name for model in await connect(locked.url, "wrong").models("correct-key")] == ["fake"]


async def test_a_missing_server_is_reported() -> None:
    with pytest.raises(Unavailable, match=r"No server answers at http://127\.0\.0\.1:9\. Start one with: lsv serve"):
        await connect("http://127.0.0.1:9").models()


async def test_media_are_refused_plainly(api) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    message = await answered(connect(api.url), {"messages": [{"role": "user", "content": [part]}]})
    assert message.error
    assert "{" not in message.error


async def test_what_the_server_can_do(api) -> None:
    document = {"paths": {"/v1/audio/transcriptions": {}}, "components": {"schemas": {"ChatRequest": {}}}}
    assert Abilities.of(document) == Abilities(transcribes=True, structures=False)
    assert Abilities.of({}) == Abilities()
    assert isinstance((await connect(api.url).abilities()).structures, bool)


async def test_a_schema_entered_for_another_server_is_left_out(api) -> None:
    """This one refuses ``response_format``."""
    from lsv_webui.chat.tab import ChatTab

    chat, values = Chat(), ["fake", "", "", '{"type": "object"}', [], False, *[""] * len(NUMBERS)]
    chat.ask("Hello")
    window: Any = SimpleNamespace(session_hash="a")
    async for _ in ChatTab(connect(api.url)).answer(window, "", chat, *values):
        pass
    assert (chat.messages[-1].text, chat.messages[-1].error) == (api.engine.answer, "")


PROXY = b"<html><body><h1>502 Bad Gateway</h1><hr>nginx</body></html>"


UNREACHED = "The proxy before the server can't reach it (502 Bad Gateway). Is the server running?"


@pytest.mark.parametrize(
    ("status", "body", "kind", "told"),
    [
        (
            502,
            PROXY,
            Unavailable,
            "The proxy before the server can't reach it (502 Bad Gateway). Is the server running?",
        ),
        (404, PROXY, BadRequest, "The server answered 404 Not Found and did not say why."),
        (599, b"", BadRequest, "The server answered 599 and did not say why."),
        (400, b'{"error": "no such model"}', BadRequest, "No such model"),
        (404, b'{"detail": "Not Found"}', BadRequest, "Not Found"),
        (400, b'{"error": {"message": "seed: must be small", "param": "seed"}}', BadRequest, "Must be small"),
        (500, b'"no"', BadRequest, "The server answered 500 Internal Server Error and did not say why."),
    ],
)
def test_refusals_are_text_without_markup(status: int, body: bytes, kind: type[LsvError], told: str) -> None:
    found = refusal(status, body)
    assert (type(found), str(found)) == (kind, told)


async def test_no_field_of_the_api_is_named(api) -> None:
    """A visitor can't set one."""
    long = await answered(connect(api.url), {"messages": [{"role": "user", "content": "x" * 2000}]})
    assert "truncate_prompt_tokens" not in long.error
    assert "start a new chat" in long.error


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn({"m": None})
    yield server
    server.stop()


async def test_an_answer_that_is_cut_short_says_so_and_keeps_what_came(stand_in) -> None:
    stand_in.cut = 2
    message = await answered(connect(stand_in.url))
    assert message.text == "I see"
    assert message.error == "The connection to the server broke off before the answer was complete. Ask again."


@pytest.mark.parametrize("last", [[], ['data: {"choi']])
async def test_a_stream_without_its_end_was_cut(last: list[str]) -> None:
    async def lines() -> AsyncIterator[str]:
        for line in ("data: {}", "", *last):
            yield line

    found = read_events(lines(), marked=True)
    assert await anext(found) == {}
    with pytest.raises(Unavailable, match="broke off"):
        await anext(found)


async def test_another_openai_compatible_server_works() -> None:
    """One whose /health has an empty body, and which does not describe itself."""
    server = StandIn({"m": None}, lsv=False)
    api = connect(server.url)
    assert await api.health() == {"status": "ready", "models": []}
    assert await api.abilities() == Abilities()
    assert (await answered(api)).text == server.answer
    server.models = {}
    with pytest.raises(Unavailable, match="serves no model"):
        await api.models()
    server.stop()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_counts_but_is_not_part_of_the_answer(stand_in, field: str) -> None:
    stand_in.answer = [{"role": "assistant", "content": ""}, {field: "Well"}, {field: " …"}, {"content": "Yes."}]
    stand_in.pace = 0.06
    message = await answered(connect(stand_in.url))
    assert (message.thinking, message.text) == ("Well …", "Yes.")
    assert 0.04 < message.thinking_seconds < 60
    assert "tok/s" in message.note


async def test_thinking_between_tags_is_recognised(stand_in) -> None:
    stand_in.answer = "<think>\nA cat?\n</think>\n\nA cat."
    message = await answered(connect(stand_in.url))
    assert (message.thinking, message.text) == ("A cat?", "A cat.")


@pytest.mark.parametrize(
    ("content", "thinking", "text"),
    [
        ("<think>\nSo", "So", ""),
        ("\n<think></think>\n\nYes.", "", "Yes."),
        ("So.\n</think>\n\nYes.", "So.", "Yes."),
        ("The tag `</think>` ends it.", "", "The tag `</think>` ends it."),
        ("Write <think> first.", "", "Write <think> first."),
        ("", "", ""),
    ],
)
def test_parts_of_an_answer(content: str, thinking: str, text: str) -> None:
    assert part(content) == (thinking, text)


async def test_tool_calls_are_put_together(stand_in) -> None:
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"at":'}},
        {"index": 0, "function": {"arguments": " 1}"}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "go", "arguments": "{}"}},
    ]
    stand_in.answer = [{"tool_calls": [piece]} for piece in pieces]
    message = await answered(connect(stand_in.url))
    assert message.calls == [
        ToolCall(id="a", name="look", arguments='{"at": 1}'),
        ToolCall(id="b", name="go", arguments="{}"),
    ]
    assert "an empty answer" not in message.note
