"""lsv-demo calls functions through the official client: held-out cases, the loop, streams, helpers, thoughts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from demo_training.functions.conversations import cases
from demo_training.functions.offered import CALCULATOR, WEATHER
from demo_training.questions import correct, questions

pytestmark = pytest.mark.xdist_group("server")

ROOT = Path(__file__).parents[2]
TOOLS: Any = [CALCULATOR.as_tool(), WEATHER.as_tool()]
FUNCTIONS = {"calculate": lambda expression: "111563", "get_weather": lambda city: f"sunny, 21 degrees in {city}"}
SUM, WEATHER_ASKED, FACT = "What is 3847 * 29?", "What is the weather in Bern?", "What is the capital of France?"


def client_of(server) -> OpenAI:
    return server.client()


def create(server, messages: list[Any], **options: Any) -> Any:
    options = {"tools": TOOLS, "tool_choice": "auto", "temperature": 0, **options}
    return client_of(server).chat.completions.create(model="lsv-demo", messages=messages, **options).choices[0]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.timeout(1200)  # hundreds of chats, on emulated devices too
@pytest.mark.parametrize("count", [200, pytest.param(400, marks=pytest.mark.slow)])
async def test_nine_in_ten_held_out_cases_are_right(server, count):
    # Imported here, since it brings Triton: tests of kernels must be the first to, with its interpreter on.
    from demo_training.functions import evaluate

    asked = cases(count, seed=0)
    table = evaluate.score(asked, await evaluate.ask(asked, server.url + "/v1"))
    right, total = table["all"]
    assert right >= 0.9 * total


@pytest.mark.row("F-175", "F-182")
def test_the_loop(server):
    """Call, run, feed the result, until there is an answer."""
    messages = user(SUM)
    rounds = 0
    while (choice := create(server, messages)).finish_reason == "tool_calls":
        rounds += 1
        assert rounds < 3
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert rounds == 1
    assert choice.message.content == "3847 * 29 = 111563."


def test_a_question_that_no_function_fits(server):
    choice = create(server, user(FACT))
    assert choice.finish_reason == "stop"
    assert not choice.message.tool_calls
    assert choice.message.content == "The capital of France is Paris."


def test_two_calls_at_once(server):
    messages = user("What is the weather in Bern and in Oslo?")
    message = create(server, messages).message
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    assert cities == ["Bern", "Oslo"]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(message.tool_calls, ("sunny, 21 degrees", "rainy, 12 degrees"), strict=True)
    ]
    answer = create(server, [*messages, message, *results]).message.content
    assert answer == "It is sunny in Bern, 21 degrees. It is rainy in Oslo, 12 degrees."


@pytest.mark.row("F-161")
def test_a_stream_has_the_events_of_a_call(server):
    with client_of(server).chat.completions.stream(
        model="lsv-demo", messages=user(WEATHER_ASKED), temperature=0, tool_choice="auto",
        tools=[{**TOOLS[1], "function": {**TOOLS[1]["function"], "strict": True}}],
    ) as stream:  # fmt: skip
        events = list(stream)
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert json.loads("".join(deltas)) == json.loads(done.arguments) == {"city": "Bern"}
    assert done.name == "get_weather"
    assert stream.get_final_completion().choices[0].finish_reason == "tool_calls"


class GetWeather(BaseModel):
    """The weather of a city"""

    city: str


class Card(BaseModel):
    name: str
    job: str
    town: str


def test_parse_gives_arguments_as_a_model(server):
    answer = client_of(server).chat.completions.parse(
        model="lsv-demo", messages=user(WEATHER_ASKED), temperature=0,
        tools=[pydantic_function_tool(GetWeather, name="get_weather")],
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Bern")


@pytest.mark.row("F-155")
def test_parse_gives_an_answer_as_a_model(server):
    answer = client_of(server).chat.completions.parse(
        model="lsv-demo", messages=user("Give Mira's card as JSON."), temperature=0, response_format=Card
    )
    assert answer.choices[0].message.parsed == Card(name="Mira", job="baker", town="Lorn")


@pytest.mark.parametrize("question", [SUM, FACT])
def test_thoughts_come_first_when_asked_for(server, question):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    thought, plain = create(server, user(question), extra_body=thinking).message, create(server, user(question)).message
    assert thought.reasoning_content
    assert "think>" not in (thought.content or "")
    assert not getattr(plain, "reasoning_content", None)
    assert (thought.content or "").strip() == (plain.content or "")
    assert [call.function for call in thought.tool_calls or ()] == [call.function for call in plain.tool_calls or ()]


def test_thoughts_without_functions(server):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    asked = [question for question in questions("test", 40, seed=3) if question.skill != "yes or no"]
    found = [
        create(server, list(each.messages), tools=None, tool_choice=None, extra_body=thinking).message for each in asked
    ]
    assert all(message.reasoning_content for message in found)
    assert sum(
        correct(each.answer, message.content or "") for each, message in zip(asked, found, strict=True)
    ) > 0.8 * len(asked)


def test_the_agents_package_runs_its_loop(server):
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city"""
        return f"sunny in {city}"

    model = agents.OpenAIChatCompletionsModel(
        "lsv-demo", AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0)
    )
    agent = agents.Agent(name="demo", model=model, tools=[get_weather])
    assert agents.Runner.run_sync(agent, WEATHER_ASKED).final_output == "It is sunny in Bern."


def run(server, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code.replace("http://localhost:8000", server.url)],
        capture_output=True, text=True, timeout=200, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide(server):
    """docs/tools.md is written for another model."""
    text = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)).replace("Qwen/Qwen3-8B", "lsv-demo")
    shown = run(server, code.replace("tools=tools", "tools=tools, temperature=0"))
    assert "It is sunny in Bern." in shown
    assert "0 get_weather" in shown


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_brings_no_thoughts_that_auto_has_not(server, choice):
    for given in ("auto", choice):
        message = create(server, user("What is the weather in Lorn?"), tool_choice=given).message
        assert getattr(message, "reasoning_content", None) is None
        assert [call.function.name for call in message.tool_calls] == ["get_weather"]
