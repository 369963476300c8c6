"""Anthropic's Messages: conversations, tools, thoughts, streams and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest

from lsv.engine.client import Service
from lsv.request.outputs import Chunk
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api import frontend
from lsv_api.limits import Limits
from lsv_base.errors import BadRequest
from lsv_testing.fakes.client import FakeClient, fake_config
from suite.messages import CALL, SCHEMA, USER, WEATHER, answer, ask, events, joined, shown, thinker


async def test_an_answer(site):
    reply = await ask(site, model="fake")
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    found = reply.json()
    assert found.pop("id").startswith("msg_")
    assert found == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello, world.", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 16,
            "output_tokens": 14,
            "output_tokens_details": None,
            "service_tier": "standard",
        },
    }


async def test_a_stream(site):
    reply = await ask(site, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = events(reply.text)
    kinds = [event["type"] for event in found]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert joined(found)[0]["text"] == "Hello, world."
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["usage"]["input_tokens"] == 10
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 14


async def test_a_stream_and_an_answer_have_the_same_blocks(start):
    site = await thinker(start)
    whole = await answer(site, tools=[WEATHER])
    found = events((await ask(site, tools=[WEATHER], stream=True)).text)
    blocks = joined(found)
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2]["input"] == {"city": "Bern"}
    ids = [answer["content"] if isinstance(answer, dict) else answer for answer in (whole, blocks)]
    assert [block | {"id": ""} for block in ids[0]] == [block | {"id": ""} for block in ids[1]]
    assert found[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_an_empty_answer_is_a_whole_stream(start):
    site = await start(FakeClient(answer=""))
    kinds = [event["type"] for event in events((await ask(site, stream=True)).text)]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]
    assert (await answer(site))["content"] == []


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({}, {}),
        ({"system": "Be brief."}, {"messages": [{"role": "system", "content": "Be brief."}, *USER]}),
        (
            {"system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "A"}]},
            {"messages": [{"role": "system", "content": "A"}, *USER]},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}]},
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": "Sun"}]},
            {
                "messages": [*USER, {"role": "assistant", "content": "Sun"}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
        (
            {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop_sequences": ["o"], "seed": 7},
            {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop": ["o"], "seed": 7},
        ),
        (
            {"thinking": {"type": "disabled"}},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 64}},
            {
                "thinking_token_budget": 64,
                "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
            },
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "any"}},
            {"tools": "openai", "tool_choice": "required"},
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}},
            {"tools": "openai", "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "none"}}, {"tools": "openai", "tool_choice": "none"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}, {}),
    ],
)
async def test_it_asks_the_engine_what_a_chat_asks(start, body, chat):
    """The same prompt and the same parameters make the same tokens."""
    site = await thinker(start)
    await answer(site, **body)
    function = {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA}
    if "tools" in chat:
        chat = chat | {"tools": [{"type": "function", "function": function}]}
    reply = await site.chat(**({"max_tokens": 200, "messages": USER} | chat))
    assert reply.status_code == 200, reply.text
    ours, theirs = site.engine.requests
    assert ours.prompts == theirs.prompts
    assert ours.sampling == theirs.sampling
    assert ours.thinking == theirs.thinking


async def test_a_conversation_with_tools_is_shown_as_in_a_chat(start):
    site = await thinker(start)
    call = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Bern"}}
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
        {"type": "text", "text": "So?"},
    ]
    turns = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, call]}]
    function = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    told = [
        *USER,
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "So?"},
    ]
    await answer(site, messages=[*turns, {"role": "user", "content": results}])
    await site.chat(messages=told)
    ours, theirs = site.engine.requests
    assert ours.prompts == theirs.prompts


async def test_a_failed_tool_is_shown_as_such(site):
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such city", "is_error": True}
    turns = [*USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert "<tool>Error: no such city" in await shown(site, messages=turns)


async def test_documents_are_texts(site):
    parts = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
        {"type": "search_result", "source": "S", "title": "R", "content": [{"type": "text", "text": "F"}]},
    ]
    text = await shown(site, messages=[{"role": "user", "content": parts}])
    assert '<document title="T">\nC\nD\n</document>\n<document>\nE\n</document>' in text
    assert '<search_result title="R" source="S">\nF\n</search_result>' in text


@pytest.mark.parametrize(
    ("choice", "calls"), [({"type": "auto"}, 2), ({"type": "auto", "disable_parallel_tool_use": True}, 1)]
)
async def test_parallel_calls(start, choice, calls):
    site = await thinker(start, CALL + CALL)
    content = (await answer(site, tools=[WEATHER], tool_choice=choice))["content"]
    assert [block["type"] for block in content] == ["tool_use"] * calls
    assert len({block["id"] for block in content}) == calls


async def test_a_forced_call_waits_for_its_result(start):
    site = await start(FakeClient(answer='{"city": "Bern"}'))
    choice = {"type": "tool", "name": "get_weather"}
    reply = await answer(site, tools=[WEATHER], tool_choice=choice)
    assert reply["stop_reason"] == "tool_use"
    assert reply["content"][0]["input"] == {"city": "Bern"}


class Short(FakeClient):
    """Ends with the context, as engines do."""

    async def generate(self, request: RequestSpec) -> AsyncGenerator[Chunk, None]:
        assert request.sampling is not None
        most = min(request.sampling.max_tokens, self.config.max_model_len - request.prompt_tokens)
        cut = msgspec.structs.replace(request, sampling=request.sampling.replace(max_tokens=most))
        async for chunk in super().generate(cut):
            yield chunk


async def test_why_it_stopped(start):
    site = await start(Short(fake_config(max_model_len=40)))
    stopped = await answer(site, stop_sequences=["world"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "world")
    assert stopped["content"][0]["text"] == "Hello, "
    assert (await answer(site, max_tokens=3))["stop_reason"] == "max_tokens"
    site.engine.answer = "a" * 100
    full = await answer(site, max_tokens=32000)
    assert full["stop_reason"] == "model_context_window_exceeded"
    assert full["usage"]["output_tokens"] == 40 - 26


async def test_tokens_are_counted_as_prompts_are(start):
    site = await thinker(start)
    body = {"system": "Be brief.", "tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 9}}
    counted = (await site.post("/v1/messages/count_tokens", messages=USER, **body)).json()
    usage = (await answer(site, **body))["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    long = [{"role": "user", "content": "x" * 2000}]
    assert (await site.post("/v1/messages/count_tokens", messages=long)).json()["input_tokens"] > 2000


async def test_an_answer_carries_the_name_that_was_asked_for(start):
    """Claude Code drops the thoughts of an answer with another one."""
    site = await start(model_aliases={"claude-*": "fake"})
    assert (await answer(site, model="claude-sonnet-4-5"))["model"] == "claude-sonnet-4-5"
    assert (await answer(site))["model"] == "fake"


async def test_models_are_listed_in_this_form(site):
    headers = {"anthropic-version": "2023-06-01"}
    listed = (await site.http.get("/v1/models", headers=headers)).json()
    (model,) = listed.pop("data")
    assert listed == {"first_id": "fake", "last_id": "fake", "has_more": False}
    assert (await site.http.get("/v1/models/fake", headers=headers)).json() == model
    assert model["type"] == "model"
    assert (await site.http.get("/v1/models")).json()["object"] == "list"


async def test_a_silent_stream_is_kept_open(start):
    site = await start(heartbeat=0.05)
    site.engine.gate.clear()
    body = {"max_tokens": 9, "messages": USER, "stream": True}
    async with site.http.stream("POST", "/v1/messages", json=body) as reply:
        lines = reply.aiter_lines()
        assert [await anext(lines), await anext(lines)] == ["event: ping", 'data: {"type":"ping"}']
        site.engine.gate.set()
        assert [line async for line in lines][-2] == 'data: {"type":"message_stop"}'


async def test_leaving_a_stream_aborts_it(start):
    engine = FakeClient(answer="x" * 200)
    engine.pace = 0.01
    site = await start(engine)
    async with site.http.stream(
        "POST", "/v1/messages", json={"max_tokens": 200, "messages": USER, "stream": True}
    ) as r:
        async for _ in r.aiter_lines():
            break
    async with asyncio.timeout(10):
        while not engine.aborted:
            await asyncio.sleep(0.01)
    assert engine.generated < 200


class Strict(FakeClient):
    """Its template takes system messages at the beginning alone."""

    def __init__(self) -> None:
        super().__init__()
        render = self.tokenizer.render_chat

        def refuse(messages: Any, **rest: Any) -> str:
            if any(message["role"] == "system" for message in messages[1:]):
                return render([{"role": "untemplated", "content": ""}])
            return render(messages, **rest)

        self.tokenizer.render_chat = refuse  # type: ignore[method-assign]


async def test_system_messages_between_others(start):
    turns = [*USER, {"role": "system", "content": "Now in French."}, {"role": "assistant", "content": "A"}, *USER]
    assert "<user>Weather?\n<system>Now in French.\n<assistant>A" in await shown(await start(), messages=turns)
    site = await start(Strict())
    assert "<user>Weather?\nNow in French.\n<assistant>A" in await shown(site, messages=turns)
    counted = (await site.post("/v1/messages/count_tokens", messages=turns)).json()["input_tokens"]
    assert counted == len(site.engine.requests[0].prompts[0].ids)


class Blind(FakeClient):
    """Its template takes media in messages of users alone."""

    def __init__(self) -> None:
        super().__init__()
        self.media = Pictures()  # type: ignore[assignment]
        self.tokenizer.render_chat = self.render  # type: ignore[method-assign]

    def render(self, messages: Any, **rest: Any) -> str:
        parts = [
            (turn["role"], part if isinstance(part, dict) else {"type": "text", "text": part})
            for turn in messages[2:]
            for part in (turn["content"] if isinstance(turn["content"], list) else [turn["content"]])
        ]
        if any(part["type"] == "image" and role == "tool" for role, part in parts):
            raise BadRequest("the chat template refused the messages: no pictures", param="messages")
        return "".join(f"<{role}>{part.get('text', 'PICTURE')}\n" for role, part in parts)


class Pictures:
    """Takes any picture for one token."""

    marks: Mapping[str, str] = {}
    allowed = ("image",)
    transcriber = None

    def check(self, found: Any) -> None:
        pass

    def spell(self, text: str) -> str:
        return text

    async def prepare(self, found: Any, *_: Any) -> Any:
        return found

    def place(self, ids: Any, found: Any) -> Prompt:
        return Prompt(ids=(*ids, *(7 for _ in found)))


async def test_pictures_in_results(start):
    """They go to the user's message after the results where the template takes them nowhere else."""
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    calls = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in "ab"]
    seen = [{"type": "text", "text": "here"}, {"type": "image", "source": source}]
    results = [{"type": "tool_result", "tool_use_id": id, "content": seen} for id in "ab"]
    turns = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    site = await start(Blind(), tool_call_parser="hermes")
    text = await shown(site, messages=[*USER, *turns])
    assert text == "<tool>here\n<tool>here\n<user>PICTURE\n<user>PICTURE\n"


async def test_large_pictures_are_not_parsed(start):
    """Their base64 does not count as text."""
    data = "aGkh" * (1 << 15)
    source = {"type": "base64", "media_type": "image/png", "data": data}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]}
    turns = [*USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    engine = FakeClient()
    engine.media = media = Pictures()  # type: ignore[assignment]
    taken: list[Any] = []
    media.check = taken.extend  # type: ignore[method-assign]
    site = await start(engine, limits=Limits(text_bytes=2000))
    site.engine.tokenizer.render_chat = lambda *_, **__: "x"
    await answer(site, messages=turns)
    assert bytes(taken[0].base64) == data.encode()
    large = await ask(site, messages=[{"role": "user", "content": data}])
    assert large.status_code == 413


async def test_processes_of_a_server_share_the_key(monkeypatch):
    given: list[Any] = []

    class Stopped(Exception):
        pass

    def note(service: Any, settings: Any) -> Any:
        given.append(settings["api.signing_key"])
        raise Stopped

    monkeypatch.setattr(frontend, "open_server", note)
    for settings in ({}, {"api.signing_key": "k"}):
        with pytest.raises(Stopped):
            await frontend.serve(Service({"fake": FakeClient()}), settings)
    assert len(given[0]) == 64
    assert given[1] == "k"
