"""POST /v1/responses, plain and streamed: every object and event is checked against the official client's models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lsv_api.http.bodies import decode_body
from lsv_api.limits import Limits
from lsv_api.responding.items import normalise_items, write_messages
from lsv_api.responding.requests import ResponsesInputItem, ResponsesRequest
from lsv_base.errors import BadRequest, Overloaded, RequestFailed, TooLarge
from lsv_testing.fakes.client import FakeClient
from suite.openai_models import check_response, read_events
from suite.waiting import until

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
TWO = f"Let me see. {CALL}\n{CALL}"
THOUGHT = "<think>Hm, hm.</think>Hello."


async def respond(site, **body: Any) -> Any:
    return check_response((await site.post("/v1/responses", **({"input": "Hi"} | body))).content)


async def stream(site, **body: Any) -> list[Any]:
    return read_events((await site.post("/v1/responses", **({"input": "Hi"} | body), stream=True)).text)


async def refused(site, **body: Any) -> dict[str, Any]:
    reply = await site.post("/v1/responses", **({"input": "Hi"} | body))
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def prompt_of(site) -> str:
    return bytes(token for token in site.engine.requests[-1].prompt.ids if token < 256).decode()


async def test_a_text(site) -> None:
    found = await respond(site)
    assert found.output_text == "Hello, world."
    assert (found.status, found.error, found.incomplete_details) == ("completed", None, None)
    assert found.id.startswith("resp_")
    assert found.usage.model_dump()["input_tokens_details"] == {
        "cache_write_tokens": 0,
        "cache_write_tokens_details": None,
        "cached_tokens": 16,
    }
    chat = (await site.chat()).json()
    assert found.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert found.usage.output_tokens == chat["usage"]["completion_tokens"]
    first, second = site.engine.requests
    assert (first.prompt.ids, first.sampling) == (second.prompt.ids, second.sampling)


async def test_a_streamed_text(site) -> None:
    events = await stream(site)
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == len("Hello, world.")
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(event.delta for event in deltas) == "Hello, world." == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 14
    assert events[0].response.status == events[1].response.status == "in_progress"
    assert events[0].response.output == []
    assert {event.item_id for event in deltas} == {events[-1].response.output[0].id}


async def test_thoughts_are_items_of_their_own(start) -> None:
    site = await start(FakeClient(answer=THOUGHT), reasoning_parser="deepseek_r1")
    found = await respond(site)
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[0].content[0].text == "Hm, hm."
    assert found.output[0].encrypted_content is None
    assert found.usage.output_tokens_details.reasoning_tokens > 0
    events = await stream(site)
    kinds = [event.type.removeprefix("response.") for event in events if not event.type.endswith(".delta")]
    part = ["output_item.added", "content_part.added"]
    end = ["content_part.done", "output_item.done"]
    assert kinds == [
        "created", "in_progress", *part, "reasoning_text.done", *end, *part, "output_text.done", *end, "completed"
    ]  # fmt: skip
    assert [event.output_index for event in events if event.type.endswith("added")] == [0, 0, 1, 1]


async def test_thoughts_come_back_as_the_chat_template_knows_them(start) -> None:
    site = await start(FakeClient(answer=THOUGHT), reasoning_parser="deepseek_r1")
    found = await respond(site, include=["reasoning.encrypted_content"], store=False)
    item = found.output[0].model_dump(exclude_none=True)
    seen: list[Any] = []
    render = site.engine.tokenizer.render_chat
    site.engine.tokenizer.render_chat = lambda messages, **more: seen.append(messages) or render(messages, **more)
    answer = {"role": "assistant", "content": "Hello."}
    for back in (item, {key: value for key, value in item.items() if key != "content"}):
        await respond(site, input=[{"role": "user", "content": "Hi"}, back, answer, {"role": "user", "content": "?"}])
    assert [message.get("reasoning_content") for message in seen[0]] == [None, "Hm, hm.", None]
    assert seen[0] == seen[1]
    foreign = await refused(site, input=[{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}])
    assert foreign["param"] == "input[0].encrypted_content"


async def test_calls(start) -> None:
    site = await start(FakeClient(answer=TWO), tool_call_parser="hermes")
    found = await respond(site, tools=[WEATHER])
    text, *calls = found.output
    assert text.content[0].text == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", {"city": "Bern"})] * 2
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 2
    assert found.status == "completed"
    assert found.tools[0].name == "get_weather"
    events = await stream(site, tools=[WEATHER])
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert len(pieces) > 6, "arguments are streamed"
    for event in done:
        whole = "".join(piece.delta for piece in pieces if piece.item_id == event.item_id)
        assert json.loads(whole) == json.loads(event.arguments) == {"city": "Bern"}
    assert [item.type for item in events[-1].response.output] == ["message", "function_call", "function_call"]
    chat = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    await site.chat(tools=[chat])
    requests = site.engine.requests
    assert requests[-1].prompt.ids == requests[-2].prompt.ids


async def test_the_loop_of_calls_is_one_chat(start) -> None:
    site = await start(FakeClient(answer=TWO), tool_call_parser="hermes")
    found = await respond(site, tools=[WEATHER])
    seen: list[Any] = []
    render = site.engine.tokenizer.render_chat
    site.engine.tokenizer.render_chat = lambda messages, **more: seen.append(messages) or render(messages, **more)
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in found.output[1:]
    ]
    items = [{"role": "user", "content": "Hi"}, *(item.model_dump(exclude_none=True) for item in found.output)]
    await respond(site, input=[*items, *outputs], tools=[WEATHER])
    assert [message["role"] for message in seen[0]] == ["user", "assistant", "tool", "tool"]
    assert seen[0][1]["content"] == "Let me see."
    assert len(seen[0][1]["tool_calls"]) == 2


async def test_bounds_of_calls(start) -> None:
    site = await start(FakeClient(answer=TWO), tool_call_parser="hermes")
    for asked in ({"parallel_tool_calls": False}, {"max_tool_calls": 1}):
        found = await respond(site, tools=[WEATHER], **asked)
        assert [item.type for item in found.output] == ["message", "function_call"]
    site.engine.answer = f"{TWO}\n{CALL}"
    found = await respond(site, tools=[WEATHER], max_tool_calls=2)
    assert [item.type for item in found.output] == ["message", "function_call", "function_call"]


async def test_custom_tools_take_a_text(start) -> None:
    patch = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** \\"a\\"\\n+b"}}\n</tool_call>'
    site = await start(FakeClient(answer=f"So. {patch}"), tool_call_parser="hermes")
    tool = {"type": "custom", "name": "patch", "description": "Change a file", "format": {"type": "text"}}
    found = await respond(site, tools=[tool])
    call = found.output[1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", '*** "a"\n+b')
    assert found.tools[0].type == "custom"
    events = await stream(site, tools=[tool, WEATHER])
    kinds = [event.type.removeprefix("response.") for event in events[-5:]]
    assert kinds == [
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert events[-4].delta == events[-3].input == events[-1].response.output[1].input == call.input
    seen: list[Any] = []
    render = site.engine.tokenizer.render_chat
    site.engine.tokenizer.render_chat = lambda messages, **more: seen.append(messages) or render(messages, **more)
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    back = [item.model_dump(exclude_none=True) for item in found.output]
    await respond(site, input=[{"role": "user", "content": "Hi"}, *back, output], tools=[tool])
    assert [message["role"] for message in seen[0]] == ["user", "assistant", "tool"]
    arguments = seen[0][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"input": call.input}
    site.engine.answer = patch
    cut = await respond(site, tools=[tool], max_output_tokens=len(patch) - 30)
    assert (cut.status, cut.output[0].type) == ("incomplete", "custom_tool_call")
    choice = {"type": "custom", "name": "patch"}
    assert (await respond(site, tools=[tool, WEATHER], tool_choice=choice)).output[0].name == "patch"
    grammar = {**tool, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}
    assert (await refused(site, tools=[grammar]))["param"] == "tools[0].format"


async def test_a_choice_may_allow_some_tools(start) -> None:
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    other = {**WEATHER, "name": "get_time"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]}
    found = await respond(site, tools=[WEATHER, other], tool_choice=allowed)
    assert found.tool_choice.mode == "auto"
    assert ("<tool>get_time" in prompt_of(site), "<tool>get_weather" in prompt_of(site)) == (True, False)
    found = await respond(site, tools=[WEATHER], tool_choice={"type": "function", "name": "get_weather"})
    assert found.output[0].name == "get_weather"
    gone = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "gone"}]}
    assert (await refused(site, tools=[WEATHER], tool_choice=gone))["param"] == "tool_choice.tools"


@pytest.mark.parametrize("kind", ["web_search", "file_search", "code_interpreter", "mcp", "local_shell", None])
async def test_built_in_tools_are_refused_by_name(site, kind: str | None) -> None:
    error = await refused(site, tools=[{"type": kind}])
    assert (error["param"], error["code"]) == ("tools[0].type", "unsupported_parameter")
    assert str(kind) in error["message"]


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "image_generation", "tool_search"])
async def test_built_in_tools_that_an_agent_offers_beside_its_own_are_left_out(start, kind: str) -> None:
    site = await start(FakeClient(), tool_call_parser="hermes")
    found = await respond(site, tools=[{"type": kind}, WEATHER])
    assert [tool.type for tool in found.tools] == ["function"]
    assert prompt_of(site).count("<tool>") == 1
    error = await refused(site, tools=[{"type": kind}, WEATHER], tool_choice={"type": kind})
    assert error["param"] == "tool_choice"


SPACE = {
    "type": "namespace",
    "name": "mcp__sky__",
    "description": "What the sky does.",
    "tools": [{**WEATHER, "defer_loading": True}, {**WEATHER, "name": "get_stars"}],
}


async def test_functions_of_a_namespace(start) -> None:
    call = CALL.replace("get_weather", "mcp__sky__get_weather")
    site = await start(FakeClient(answer=call), tool_call_parser="hermes")
    found = await respond(site, tools=[SPACE, WEATHER])
    assert (found.output[0].name, found.output[0].namespace) == ("get_weather", "mcp__sky__")
    assert [tool.type for tool in found.tools] == ["namespace", "function"]
    shown = [line for line in prompt_of(site).splitlines() if line.startswith("<tool>")]
    assert shown == ["<tool>mcp__sky__get_weather", "<tool>mcp__sky__get_stars", "<tool>get_weather"]
    events = await stream(site, tools=[SPACE])
    assert events[-1].response.output[0].namespace == "mcp__sky__"


def test_a_call_of_a_namespace_comes_back() -> None:
    call = ResponsesInputItem(
        type="function_call", call_id="c", name="get_weather", namespace="mcp__sky__", arguments="{}"
    )
    (turn,) = write_messages(normalise_items([call]), None).messages
    assert turn.tool_calls[0].function.name == "mcp__sky__get_weather"


async def test_a_choice_may_name_a_function_of_a_namespace(start) -> None:
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    named = {"type": "function", "name": "get_stars", "namespace": "mcp__sky__"}
    await respond(site, tools=[SPACE, WEATHER], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [named]})
    assert prompt_of(site).count("<tool>") == 1
    assert "<tool>mcp__sky__get_stars" in prompt_of(site)


async def test_forms(site) -> None:
    site.engine.answer = '{"a": 1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "numbers", "schema": schema, "strict": True}
    found = await respond(site, text={"format": form})
    assert json.loads(found.output_text) == {"a": 1}
    assert found.text.format.name == "numbers"
    await site.chat(response_format={"type": "json_schema", "json_schema": {"name": "numbers", "schema": schema}})
    first, second = site.engine.requests
    assert first.sampling.structured_outputs == second.sampling.structured_outputs is not None
    await respond(site, text={"format": {"type": "json_object"}})
    assert site.engine.requests[-1].sampling.structured_outputs.form == "json_object"
    error = await refused(site, text={"format": {"type": "json_schema", "name": "x"}})
    assert error["param"] == "text.format.schema"
    site.engine.failure = BadRequest("structured_outputs: unknown type", param="structured_outputs")
    for streams in (False, True):
        error = await refused(site, text={"format": form}, stream=streams)
        assert error["param"].startswith("text.format")
        assert error["message"].startswith("text.format")


async def test_an_answer_that_is_cut_off_is_incomplete(site) -> None:
    found = await respond(site, max_output_tokens=4)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output_text, found.output[0].status) == ("Hell", "incomplete")
    events = await stream(site, max_output_tokens=4)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[0].status == "incomplete"


async def test_log_probabilities(site) -> None:
    found = await respond(site, top_logprobs=2)
    logprobs = found.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == "Hello, world."
    assert [len(entry.top_logprobs) for entry in logprobs] == [2] * 13
    events = await stream(site, include=["message.output_text.logprobs"])
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [event.logprobs[0].token for event in deltas] == list("Hello, world.")
    assert (await respond(site)).output[0].content[0].logprobs == []


async def test_instructions_go_before_the_input(site) -> None:
    found = await respond(site, instructions="Be brief.")
    assert found.instructions == "Be brief."
    assert "<system>Be brief.\n<user>Hi\n" in prompt_of(site)
    developer = {"role": "developer", "content": "No lists."}
    await respond(site, instructions="Be brief.", input=[developer, {"role": "user", "content": "Hi"}])
    assert "<system>Be brief.\n\nNo lists.\n<user>Hi\n" in prompt_of(site)


async def test_the_request_is_repeated(site) -> None:
    found = await respond(
        site, temperature=0.5, top_p=0.9, metadata={"a": "b"}, user="u", prompt_cache_key="k", safety_identifier="s",
        truncation="auto", max_tool_calls=3, service_tier="auto", reasoning={"effort": "low", "summary": "auto"},
    )  # fmt: skip
    assert (found.temperature, found.top_p, found.truncation, found.max_tool_calls) == (0.5, 0.9, "auto", 3)
    assert (found.metadata, found.user, found.prompt_cache_key) == ({"a": "b"}, "u", "k")
    assert (found.safety_identifier, found.reasoning.effort) == ("s", "low")
    assert "<reasoning_effort:low>" in prompt_of(site)


WRONG: dict[str, dict[str, Any]] = {
    "input": {"input": None},
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "context_management": {"context_management": [{"type": "compaction"}]},
    "truncation": {"truncation": "some"},
    "include[0]": {"include": ["thoughts"]},
    "max_output_tokens": {"max_output_tokens": 0},
    "max_tool_calls": {"max_tool_calls": 0},
    "top_logprobs": {"top_logprobs": 21},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "reasoning.summary": {"reasoning": {"summary": "detailed"}},
    "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
    "stream_options": {"stream_options": {}},
    "store": {"background": True, "store": False},
    "metadata": {"metadata": {"a" * 65: "b"}},
    "temperature": {"temperature": -1},
    "tool_choice": {"tool_choice": {"type": "web_search"}},
    "tools[0].name": {"tools": [{"type": "function", "name": "not a name"}]},
    "tools[0].input_schema": {"tools": [{"type": "function", "name": "f", "input_schema": {}}]},
    "tools[0].parameter": {"tools": [{"type": "function", "name": "f", "parameter": {}}]},
    "tools[1].tools[0]": {"tools": [WEATHER, {"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
    "tools[0]": {"tools": [{"type": "namespace", "name": "n"}]},
    "text.format.type": {"text": {"format": {"type": "grammar"}}},
    "tools[0].parameters": {"tools": [{"type": "function", "name": "f", "parameters": []}]},
    "input[0].type": {"input": [{"type": "computer_call"}]},
    "input[0].role": {"input": [{"role": "robot", "content": "Hi"}]},
    "input[0].content": {"input": [{"role": "user"}]},
    "input[1].output": {"input": [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "c"}]},
    "input[0].content[0]": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
    "input[0].content[0].type": {"input": [{"role": "user", "content": [{"type": "input_video"}]}]},
    "input[0].content[1]": {
        "instructions": "Look.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                ],
            }
        ],
    },
    "input[0].content[0].file_id": {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
}


@pytest.mark.parametrize("param", WRONG)
async def test_what_is_wrong_is_named(site, param: str) -> None:
    error = await refused(site, **WRONG[param])
    assert error["param"] == param
    assert "messages" not in error["message"]
    assert site.engine.requests == []


def test_media_do_not_count_as_text() -> None:
    limits = Limits(text_bytes=1 << 20)
    image = "data:image/png;base64," + "A" * (2 << 20)
    part = {"type": "input_image", "image_url": image}
    body = decode_body(json.dumps({"input": [{"role": "user", "content": [part]}]}).encode(), ResponsesRequest, limits)
    assert body.input[0].content[0].image_url == image
    with pytest.raises(TooLarge, match="without its media"):
        decode_body(json.dumps({"input": "A" * (2 << 20)}).encode(), ResponsesRequest, limits)


async def test_a_conversation_that_is_too_long_loses_its_oldest_items(site) -> None:
    turns = [
        {"role": role, "content": f"{role} {turn} {'x' * 100}"} for turn in range(6) for role in ("user", "assistant")
    ]
    items = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Last"}]
    assert (await refused(site, input=items))["code"] == "context_length_exceeded"
    found = await respond(site, input=items, truncation="auto", max_output_tokens=20)
    assert found.status == "completed"
    shown = prompt_of(site)
    assert shown.count("<system>Be brief.") == shown.count("<user>Last") == 1
    kept = shown.count("x" * 100)
    assert len(shown) + 120 + 20 > 512 > len(shown) + 20, "no more than what must go is dropped"
    assert 1 <= kept < 12
    assert "assistant 5" in shown
    assert "user 0" not in shown
    too_long = await site.post("/v1/responses", input="y" * 600, truncation="auto")
    assert too_long.json()["error"]["param"] == "input"


async def test_calls_are_dropped_with_their_outputs(start) -> None:
    site = await start(FakeClient(), tool_call_parser="hermes")
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "z" * 100}
    question = {"role": "user", "content": "q" * 370}
    await respond(site, input=[call, output, question], tools=[WEATHER], truncation="auto", max_output_tokens=20)
    assert "<tool>z" not in prompt_of(site)
    assert "<user>q" in prompt_of(site)


async def test_an_error_of_the_engine_has_its_status_before_the_first_event(site) -> None:
    site.engine.failure = Overloaded("the queue is full")
    for streams in (False, True):
        assert (await site.post("/v1/responses", input="Hi", stream=streams)).status_code == 429


async def test_an_error_in_a_stream_fails_the_response(site) -> None:
    site.engine.failure, site.engine.fail_after = RequestFailed("no number"), 5
    events = await stream(site)
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.failed"
    ]  # fmt: skip
    failed = events[-1].response
    assert (failed.status, failed.error.code, failed.error.message) == ("failed", "server_error", "no number")
    assert failed.output[0].status == "incomplete"


async def test_an_error_after_a_comment_begins_the_response_first(start) -> None:
    engine = FakeClient()
    engine.pace, engine.failure, engine.fail_after = 0.3, RequestFailed("no number"), 0
    engine.gate.clear()
    site = await start(engine, heartbeat=0.1)
    engine.failure, engine.fail_after = None, 0
    sending = asyncio.create_task(stream(site))
    await until(lambda: engine.requests)
    await asyncio.sleep(0.3)
    engine.failure, engine.fail_after = RequestFailed("no number"), -1
    engine.gate.set()
    assert [event.type for event in await sending] == [
        "response.created", "response.in_progress", "response.failed"
    ]  # fmt: skip


async def test_a_client_that_leaves_aborts_its_request(site) -> None:
    site.engine.pace = 0.05
    async with site.http.stream("POST", "/v1/responses", json={"input": "Hi", "stream": True}) as reply:
        async for line in reply.aiter_lines():
            if "delta" in line:
                break
    await until(lambda: site.engine.aborted)
    plain = asyncio.create_task(site.post("/v1/responses", input="Hi"))
    await until(lambda: len(site.engine.requests) == 2)
    plain.cancel()
    await until(lambda: len(site.engine.aborted) == 2)


async def test_the_official_client(start) -> None:
    class Weather(BaseModel):
        city: str

    site = await start(FakeClient(answer='{"city": "Bern"}'))
    parsed = await site.openai.responses.parse(model="fake", input="Hi", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Bern")
    async with site.openai.responses.stream(model="fake", input="Hi") as events:
        final = await events.get_final_response()
    assert final.output_text == '{"city": "Bern"}'
    with pytest.raises(openai.BadRequestError, match="web_search"):
        await site.openai.responses.create(model="fake", input="Hi", tools=[{"type": "web_search"}])
