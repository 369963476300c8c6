"""Calls of tools and thoughts, as clients of the chat route see them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lsv_api.listening import check
from lsv_api.options import ApiOptions
from lsv_api.parsing import check_parsers
from lsv_base.errors import ConfigError
from lsv_testing.fakes.client import FakeClient, FakeTokenizer

USER = [{"role": "user", "content": "Weather?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern \\"1\\""}}\n</tool_call>'
TWO = f"Let me see. {CALL}\n{CALL}"
ARGUMENTS = {"city": 'Bern "1"'}


def events(text: str) -> list[Any]:
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    assert blocks.pop() == "[DONE]"
    return [json.loads(block) for block in blocks]


@pytest.fixture
async def site(start):
    return await start(FakeClient(answer=TWO), tool_call_parser="hermes")


@pytest.mark.row("F-125", "F-157", "F-175", "F-178", "F-181", "F-216", "F-217", "F-997")
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
async def test_calls(site, choice):
    reply = (await site.chat(tools=[WEATHER], **choice)).json()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    assert reply["message"]["content"] == "Let me see."
    calls = reply["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather"] * 2
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [ARGUMENTS] * 2
    assert len({call["id"] for call in calls}) == 2
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)


async def test_an_answer_of_calls_alone_has_no_content(start):
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    message = (await site.chat(tools=[WEATHER])).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


@pytest.mark.row("F-161", "F-181")
async def test_streamed_calls(site):
    found = events((await site.chat(tools=[WEATHER], stream=True)).text)
    deltas = [event["choices"][0]["delta"] for event in found]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    made = [call for delta in deltas for call in delta.get("tool_calls", ())]
    opening = [call for call in made if "id" in call]
    assert [(call["index"], call["type"], call["function"]) for call in opening] == [
        (index, "function", {"name": "get_weather", "arguments": ""}) for index in (0, 1)
    ]
    for index in (0, 1):
        pieces = [call["function"]["arguments"] for call in made if call["index"] == index]
        assert len(pieces) > 3, "arguments are streamed"
        assert json.loads("".join(pieces)) == ARGUMENTS
    assert all(set(call) == {"index", "function"} for call in made if call not in opening)
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_token_ids_of_calls(site):
    asked = {"tools": [WEATHER], "return_token_ids": True}
    whole = (await site.chat(**asked)).json()["choices"][0]["token_ids"]
    found = events((await site.chat(**asked, stream=True)).text)
    assert [id for event in found for id in event["choices"][0].get("token_ids", ())] == whole
    assert bytes(id for id in whole if id < 256).decode() == TWO
    assert found[0]["prompt_token_ids"] == list(site.engine.requests[-1].prompt.ids)


async def test_the_first_call_alone(site):
    asked = {"tools": [WEATHER], "parallel_tool_calls": False}
    assert len((await site.chat(**asked)).json()["choices"][0]["message"]["tool_calls"]) == 1
    found = events((await site.chat(**asked, stream=True)).text)
    indices = {call["index"] for event in found for call in event["choices"][0]["delta"].get("tool_calls", ())}
    assert indices == {0}


async def test_tools_that_may_not_be_called(site, start):
    reply = (await site.chat(tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert reply["message"]["content"] == TWO
    assert reply["message"]["tool_calls"] == []
    assert reply["finish_reason"] == "stop"
    assert b"<tool>get_weather" in bytes(site.engine.requests[-1].prompt.ids)
    silent = await start(tool_call_parser="hermes", exclude_tools=True)
    await silent.chat(tools=[WEATHER], tool_choice="none")
    assert b"<tool>" not in bytes(silent.engine.requests[-1].prompt.ids)
    await silent.chat(tools=[WEATHER])
    assert b"<tool>get_weather" in bytes(silent.engine.requests[-1].prompt.ids)


async def test_a_call_that_is_cut_off(site):
    cut = len('Let me see. <tool_call>\n{"name": "get_weather", "arguments": {"city')
    choice = (await site.chat(tools=[WEATHER], max_tokens=cut)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city'


@pytest.mark.row("F-182")
async def test_the_loop(site):
    first = await site.openai.chat.completions.create(model="fake", messages=USER, tools=[WEATHER])
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    site.engine.answer = "It is sunny."
    second = await site.openai.chat.completions.create(
        model="fake", messages=[*USER, message, *results], tools=[WEATHER]
    )
    assert second.choices[0].message.content == "It is sunny."
    assert second.choices[0].finish_reason == "stop"
    assert bytes(site.engine.requests[-1].prompt.ids).count(b"<tool>sunny") == 2


async def test_helpers_of_the_official_client(start):
    class GetWeather(BaseModel):
        city: str

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    parsed = await site.openai.chat.completions.parse(model="fake", messages=USER, tools=[tool])
    (call,) = parsed.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(**ARGUMENTS)
    seen = []
    async with site.openai.chat.completions.stream(model="fake", messages=USER, tools=[tool]) as stream:
        async for event in stream:
            seen.append(event.type)
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in seen
    assert "tool_calls.function.arguments.done" in seen
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == GetWeather(**ARGUMENTS)


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (tool(), "tools[0].function.name"),
        (tool(name=""), "tools[0].function.name"),
        (tool(name="a b"), "tools[0].function.name"),
        (tool(name="a" * 129), "tools[0].function.name"),
        (tool(name="f", parameters=[]), "tools[0].function.parameters"),
        (tool(name="f", description=1), "tools[0].function.description"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER] * 513}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_bad_tools(site, fields, param):
    reply = await site.chat(**fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert site.engine.requests == []


@pytest.mark.row("F-174")
async def test_the_template_is_given_the_tools_of_a_named_call(start):
    site = await start(tool_call_parser="hermes")
    named = {"type": "function", "function": {"name": "get_weather"}}
    await site.chat(tools=[WEATHER], tool_choice=named)
    await site.chat(tools=[WEATHER])
    forced, free = (request.prompt.text for request in site.engine.requests)
    assert forced == free
    assert "<tool>get_weather\n" in forced


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.row("F-173", "F-177")
async def test_a_forced_answer_is_calls(start, stream):
    site = await start(FakeClient(answer='Hm.</think>\n{"city": "Bern"}'), reasoning_parser="deepseek_r1")
    named = {"type": "function", "function": {"name": "get_weather"}}
    found = await made_calls(site, stream, tools=[WEATHER], tool_choice=named)
    assert found == ([("get_weather", '{"city": "Bern"}')], "stop")
    assert forced(site) == WEATHER["function"]["parameters"]
    site.engine.answer = '</think>[{"name": "get_weather", "parameters": {"city": "Bern"}}]'
    found = await made_calls(site, stream, tools=[WEATHER], tool_choice="required")
    assert found == ([("get_weather", '{"city": "Bern"}')], "tool_calls")
    schema = forced(site)
    assert schema["minItems"] == 1
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == WEATHER["function"]["parameters"]


def forced(site) -> Any:
    """The schema that the engine was asked to hold the last answer to."""
    return json.loads(site.engine.requests[-1].sampling.structured_outputs.json)


async def made_calls(site, stream: bool, **asked: Any) -> tuple[list[tuple[str, str]], str]:
    """Names and arguments of an answer's calls, and how it ended."""
    if not stream:
        choice = (await site.chat(**asked)).json()["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
        return calls, choice["finish_reason"]
    found = events((await site.chat(**asked, stream=True)).text)
    names, arguments = [], [""]
    for event in found:
        for call in event["choices"][0]["delta"].get("tool_calls", ()):
            names += [call["function"]["name"]] if "name" in call["function"] else []
            arguments[call["index"]] += call["function"]["arguments"]
    return list(zip(names, arguments, strict=True)), found[-1]["choices"][0]["finish_reason"]


async def test_a_model_whose_calls_nobody_reads(start):
    site = await start()
    reply = await site.chat(tools=[WEATHER])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
    assert "--tool-call-parser" in reply.json()["error"]["message"]
    assert (await site.chat(tools=[WEATHER], tool_choice="none")).status_code == 200


class Templated(FakeTokenizer):
    """A tokenizer whose template and special tokens say how its model calls and thinks."""

    special_texts = frozenset({"<|eot|>", "<tool_call>"})

    def __init__(self, template: str) -> None:
        self.template = template


async def test_parsers_are_chosen_by_the_template(start, caplog):
    engine = FakeClient(answer=f"<think>Hm.</think>{CALL}<|eot|>")
    engine.tokenizer = Templated('<tool_call>{"name": …, "arguments": …} <think></think>')  # type: ignore[assignment]
    with caplog.at_level("INFO", "lsv.api"):
        site = await start(engine)
    assert "tool parser is hermes: the chat template has <tool_call> and arguments" in caplog.text
    assert "reasoning parser is qwen3" in caplog.text
    message = (await site.chat(tools=[WEATHER])).json()["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm."
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1
    assert not engine.requests[0].sampling.skip_special_tokens, "a mark is a special token"
    off = await start(engine, tool_call_parser="none", reasoning_parser="none")
    assert (await off.chat()).json()["choices"][0]["message"]["content"] == engine.answer


def test_unknown_parsers_are_refused_at_start():
    for name in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match="nope"):
            check({name: "nope"})
        check({name: "none"})
    check({"tool_call_parser": "qwen3_xml"})


async def thinking(start, answer="<think>\nOne, two.\n</think>\n\nThree.", **options):
    return await start(FakeClient(answer=answer), reasoning_parser="qwen3", **options)


@pytest.mark.row("F-132", "F-157")
async def test_thoughts(start):
    site = await thinking(start)
    body = (await site.chat()).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("One, two.", "Three.")
    thoughts = len("<think>\nOne, two.\n</think>")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": thoughts}
    hidden = (await site.chat(include_reasoning=False)).json()["choices"][0]["message"]
    assert (hidden["reasoning_content"], hidden["content"]) == (None, "Three.")


async def test_streamed_thoughts(start):
    site = await thinking(start)
    found = events((await site.chat(stream=True, stream_options={"include_usage": True})).text)
    deltas = [event["choices"][0]["delta"] for event in found[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "One, two."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "One, two."
    assert "".join(delta.get("content", "") for delta in deltas) == "Three."
    kinds = [next(iter(delta)) for delta in deltas[1:-1]]
    assert kinds == sorted(kinds, key=["reasoning", "content"].index), "thoughts come first"
    assert found[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_candidates_are_read_on_their_own(start):
    site = await thinking(start)
    site.engine.answers = {0: "<think>a</think>b", 1: "plain"}
    choices = (await site.chat(n=2)).json()["choices"]
    assert [(c["message"]["reasoning_content"], c["message"]["content"]) for c in choices] == [
        ("a", "b"),
        (None, "plain"),
    ]


async def test_best_answers_are_read(start):
    site = await thinking(start)
    site.engine.answers = {0: "<think>a</think>b", 1: "worse"}
    choices = (await site.chat(best_of=2, n=1, logprobs=True)).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["b"]


async def test_what_the_template_is_told(start):
    site = await thinking(start)
    await site.chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    prompt = bytes(site.engine.requests[0].prompt.ids)
    assert b"<reasoning_effort:low>" in prompt
    assert b"<enable_thinking:False>" in prompt
    for effort, thinks in (("none", b"False"), ("high", b"True")):
        await site.chat(reasoning_effort=effort)
        assert b"<enable_thinking:" + thinks + b">" in bytes(site.engine.requests[-1].prompt.ids)


async def test_log_probabilities_are_all_shown(start):
    site = await thinking(start)
    found = events((await site.chat(stream=True, logprobs=True)).text)
    shown = [
        entry["token"]
        for event in found
        if event["choices"][0]["logprobs"]
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert "".join(shown[:-1]) == site.engine.answer


async def test_templates_of_requests_get_tools(start):
    site = await start(tool_call_parser="hermes", request_templates=True)
    reply = await site.chat(tools=[WEATHER], chat_template="{{ tools[0].function.name }}")
    assert reply.status_code == 200
    assert bytes(site.engine.requests[0].prompt.ids) == b"get_weather"


async def test_stop_strings_and_parsers(site):
    message = (await site.chat(tools=[WEATHER], stop=["\n</tool_call>"])).json()["choices"][0]["message"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [ARGUMENTS]


@pytest.mark.parametrize(("stop", "whole"), [("\n</tool_call>", True), ("}}", False), ("Bern", False)])
async def test_a_stop_string_inside_arguments_leaves_nothing_to_wait_for(site, stop, whole):
    """The call is shown as far as it was written, and the answer does not wait for its result."""
    body = {"tools": [WEATHER], "stop": [stop]}
    choice = (await site.chat(**body)).json()["choices"][0]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(ARGUMENTS, ensure_ascii=False).startswith(arguments)
    assert choice["finish_reason"] == ("tool_calls" if whole else "stop")
    found = events((await site.chat(**body, stream=True)).text)
    assert [event["choices"][0]["finish_reason"] for event in found][-1] == choice["finish_reason"]


async def test_results_stand_in_the_order_of_their_calls(start):
    """Clients send results in any order. Media keep their places in the messages."""
    site = await start(tool_call_parser="hermes", request_templates=True)
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in "ab"]
    said = [*USER, {"role": "assistant", "tool_calls": calls}]
    results = [{"role": "tool", "tool_call_id": id, "content": f"[{id}]"} for id in "ba"]
    template = "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
    for given in (results, results[::-1]):
        await site.chat(messages=[*said, *given], chat_template=template)
        assert bytes(site.engine.requests[-1].prompt.ids).endswith(b"[a][b]")
    bad = {**results[0], "content": None, "role": "user"}
    reply = await site.chat(messages=[*said, results[0], results[1], bad])
    assert reply.json()["error"]["param"] == "messages[4].content"


async def test_tools_are_counted_in_prompts(site):
    bare = (await site.post("/tokenize", messages=USER)).json()["count"]
    told = (await site.post("/tokenize", messages=USER, tools=[WEATHER])).json()["count"]
    assert told > bare
    assert (await site.post("/tokenize", messages=USER, tools=[{}])).status_code == 400


async def test_synchronous_client(site):
    def use() -> str:
        with openai.OpenAI(base_url=f"{site.server.address}/v1", api_key="EMPTY", max_retries=0) as client:
            stream = client.chat.completions.create(model="fake", messages=USER, tools=[WEATHER], stream=True)
            return "".join(
                call.function.arguments or ""
                for chunk in stream
                for call in chunk.choices[0].delta.tool_calls or ()
                if call.index == 0
            )

    assert json.loads(await asyncio.to_thread(use)) == ARGUMENTS


GUIDE = Path(__file__).parents[3] / "docs" / "tools.md"


@pytest.fixture
def shout(tmp_path: Path) -> Iterator[Path]:
    """The file that the guide shows."""
    (code,) = re.findall(r"```python\n(\"\"\"shout.py.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "shout.py"
    file.write_text(code, encoding="utf-8")
    yield file
    sys.modules.pop("shout", None)


async def test_a_parser_in_a_file(start, shout):
    answer = "Let me see.\nCALL get_weather Bern\nCALL nobody x\n"
    site = await start(FakeClient(answer=answer), tool_parser_plugin=str(shout), tool_call_parser="shout")
    message = (await site.chat(tools=[WEATHER])).json()["choices"][0]["message"]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"value": "Bern"}'}
    ]
    assert message["content"] == "Let me see.\nCALL nobody x\n"


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("theirs.py", "from vllm.tool_parsers import ToolParserManager", "No module named 'vllm'; it must be a manif"),
        ("nothing.py", "api = 2", "it offers no parser; it must be a manifest"),
        ("older.py", "", "the manifest has no api number"),
        (
            "broken.py",
            "import lsv\napi = 2\n@lsv.hookimpl\ndef lsv_tool_parsers():\n    raise KeyError(5)",
            "KeyError: 5",
        ),
        ("json.py", "", "rename it"),
        ("words.txt", "", "called \\*.py"),
    ],
)
def test_a_file_that_is_no_plugin_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, why: str
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / name).write_text(code, encoding="utf-8")
    with pytest.raises(ConfigError, match=why) as refused:
        check_parsers(ApiOptions(tool_parser_plugin=str(tmp_path / name)))
    assert refused.value.param == "tool_parser_plugin"
