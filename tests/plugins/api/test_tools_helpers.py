"""The official client's helpers for tools, against a server on a port: events of a stream, parsed arguments."""

from __future__ import annotations

import asyncio

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from lsv_testing.fakes.client import FakeClient

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>'


class GetWeather(BaseModel):
    """The weather of a city"""

    city: str


ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "Weather in Bern?"}],
    "tools": [pydantic_function_tool(GetWeather, name="get_weather")],
    "tool_choice": "auto",
}


@pytest.fixture
async def client(start):
    site = await start(FakeClient(answer=CALL), names=("m",), tool_call_parser="hermes")
    with OpenAI(base_url=f"{site.server.address}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


@pytest.mark.row("F-175")
async def test_a_stream_has_the_events_of_a_call(client):
    def read():
        with client.chat.completions.stream(**ASKED) as stream:
            return list(stream), stream.get_final_completion()

    events, final = await asyncio.to_thread(read)
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(deltas) == done.arguments == '{"city": "Bern"}'
    assert done.parsed_arguments == GetWeather(city="Bern")
    assert (done.name, final.choices[0].finish_reason) == ("get_weather", "tool_calls")


async def test_arguments_are_parsed_into_a_model(client):
    answer = await asyncio.to_thread(client.chat.completions.parse, **ASKED)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Bern")
