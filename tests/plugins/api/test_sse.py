"""Events are written from templates, byte for byte as whole records would be; and sent as slowly as clients read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from lsv.engine.client import Service
from lsv_api.app import create_app
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.options import ApiOptions
from lsv_api.records.responses import (
    ChatChunk,
    ChatChunkChoice,
    ChatLogprob,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    Delta,
    TopLogprob,
    Usage,
)
from lsv_api.server import Server
from lsv_testing.fakes.client import FakeClient

ENVELOPE = {"id": "chatcmpl-1", "created": 7, "model": 'a "model"\n', "system_fingerprint": "fp"}
TOP = TopLogprob("\ufffd", -1e-05, [226])
LOGPROBS = [None, ChatLogprobs([]), ChatLogprobs([ChatLogprob('"', -0.0, [34], [TOP, TOP])])]
LISTS = [None, CompletionLogprobs([0], [-1.5], ["a"], [{"a": -1.5, "\x00": -2.0}])]
USAGE = [None, UNSET, Usage(prompt_tokens=1, total_tokens=3, completion_tokens=2)]


def chat(text: str, logprobs: Any, usage: Any) -> ChatChunk:
    choice = ChatChunkChoice(index=3, delta=Delta(content=text), logprobs=logprobs)
    return ChatChunk(choices=[choice], usage=usage, **ENVELOPE)


def completion(text: str, logprobs: Any, usage: Any) -> CompletionResponse:
    return CompletionResponse(
        choices=[CompletionChoice(index=3, text=text, logprobs=logprobs)], usage=usage, **ENVELOPE
    )


@given(st.text(), st.sampled_from(LOGPROBS), st.sampled_from(LISTS), st.sampled_from(USAGE))
def test_a_filled_template_equals_the_record(text: str, logprobs: Any, lists: Any, usage: Any):
    counts = UNSET if usage is UNSET else SLOTS[2]
    for record, scores in ((chat, logprobs), (completion, lists)):
        template = EventTemplate(record(*SLOTS[:2], counts))
        assert template.fill(text, scores, usage) == event(record(text, scores, usage))


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize(
    "options", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("scored", [False, True])
async def test_streams_have_the_fields_of_records(site, options: dict[str, bool] | None, scored: bool):
    """Events from templates have the fields of whole records, in their order."""
    more = {"stream_options": options} if options else {}
    asked = {"logprobs": True, "top_logprobs": 2} if scored else {}
    found = records((await site.chat(stream=True, n=2, **asked, **more)).text)
    grown = [one for one in found if one["choices"] and one["choices"][0]["delta"].get("content")]
    opening = found[0]
    assert {tuple(one) for one in grown} == {tuple(opening)}
    for index in (0, 1):
        text = "".join(one["choices"][0]["delta"]["content"] for one in grown if one["choices"][0]["index"] == index)
        assert text == site.engine.answer
    assert all((one["choices"][0]["logprobs"] is not None) == scored for one in grown)
    counts = [one["usage"]["completion_tokens"] for one in grown] if options and len(options) == 2 else []
    assert counts == sorted(counts)
    found = records((await site.complete(stream=True, **({"logprobs": 2} if scored else {}), **more)).text)
    grown = [one for one in found if one["choices"]]
    assert len({tuple(one) for one in grown}) == 1, "the last one is a whole record"
    assert "".join(one["choices"][0]["text"] for one in grown) == site.engine.answer


async def test_a_plugin_hears_of_what_is_sent():
    sent: list[bytes] = []
    service, options = Service({"fake": FakeClient()}), ApiOptions(port=0)
    app = create_app(service, options)

    @app.signal("http.lifecycle.send")
    async def listen(data: bytes) -> None:
        sent.append(data)

    server = Server(service, options, app)
    running = asyncio.create_task(server.run())
    while not server.address:
        await asyncio.sleep(0.005)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rsplit(":", 1)[1]))
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    server.stop()
    server.stop()
    await running
    assert b"".join(sent) == answer
