"""Anthropic's own client works unchanged, and its models take every answer and event."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from pydantic import TypeAdapter

from lsv_base.errors import Overloaded
from lsv_testing.fakes.client import FakeClient
from suite.messages import THINKS, USER, WEATHER, ask

ASKED: dict[str, Any] = {"model": "fake", "max_tokens": 200, "messages": USER}


@pytest.fixture
async def site(start):
    engine = FakeClient(answer=THINKS)
    return await start(engine, tool_call_parser="hermes", reasoning_parser="qwen3", api_keys=("k",))


@pytest.fixture(scope="module")
def anthropic() -> ModuleType:
    """Anthropic's client, which takes two seconds to import."""
    return pytest.importorskip("anthropic", reason="Anthropic's client is not installed: pip install anthropic")


@pytest.fixture
async def client(site, anthropic):
    async with anthropic.AsyncAnthropic(base_url=site.server.address, api_key="k", max_retries=0) as client:
        yield client


async def test_create(client):
    message = await client.messages.create(**ASKED, tools=[WEATHER])
    thinking, text, call = message.content
    assert (thinking.thinking, text.text, call.input) == ("Hm. Well.", "Let me see.", {"city": "Bern"})
    assert message.stop_reason == "tool_use"
    assert message._request_id


async def test_the_stream_helper(client):
    kinds = []
    async with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        async for event in stream:
            kinds.append(event.type)
        final = await stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json", "content_block_stop", "message_stop"} <= set(kinds)
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"city": "Bern"}
    assert final.content[0].signature.startswith("lsv1.")
    assert final.usage.output_tokens == len(THINKS) + 1


async def test_a_turn_goes_back_as_it_came(client):
    first = await client.messages.create(**ASKED, tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "sunny"}
    turns = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await client.messages.create(**{**ASKED, "messages": turns}, tools=[WEATHER])
    assert second.stop_reason == "tool_use"


async def test_the_beta_client(client):
    message = await client.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"], tools=[WEATHER])
    assert message.content[2].input == {"city": "Bern"}


async def test_count_tokens(client):
    counted = await client.messages.count_tokens(model="fake", messages=USER, tools=[WEATHER])
    message = await client.messages.create(**ASKED, tools=[WEATHER])
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


async def test_models(client, site, anthropic):
    page = await client.models.list()
    assert [(model.id, model.type, model.max_input_tokens) for model in page.data] == [("fake", "model", 512)]
    assert not page.has_next_page()
    assert (await client.models.retrieve("fake")).display_name == "fake"
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    shown = await site.http.get("/v1/models/fake", headers=headers)
    anthropic.types.ModelInfo.model_validate_json(shown.content, strict=True)
    assert (await site.http.get("/v1/models", headers={"x-api-key": "k"})).json()["object"] == "list"


async def test_errors_have_their_classes(client, site, anthropic):
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**{**ASKED, "model": "claude"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        await client.messages.create(**ASKED, stop_sequences=[""])
    async with anthropic.AsyncAnthropic(base_url=site.server.address, api_key="x", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(**ASKED)
    site.engine.failure, site.engine.fail_after = Overloaded("full"), 30
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        async with client.messages.stream(**ASKED) as stream:
            await stream.get_final_message()


async def test_strict_models_take_answers_and_events(site, anthropic):
    site.http.headers["x-api-key"] = "k"
    reply = await ask(site, tools=[WEATHER])
    anthropic.types.Message.model_validate_json(reply.content, strict=True)
    events = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    found = [line[6:] for line in (await ask(site, tools=[WEATHER], stream=True)).text.splitlines() if "data: " in line]
    for data in found:
        if json.loads(data)["type"] != "ping":  # which clients pass over
            events.validate_json(data, strict=True)
    assert len(found) > 30
    with pytest.raises(ValueError, match="validation error"):
        events.validate_json('{"type":"content_block_stop","index":"0"}', strict=True)
