"""Ollama's official client works unchanged, and its models take every object in strict mode."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from lsv_testing.fakes.client import FakeClient

ollama = pytest.importorskip("ollama", reason="needs Ollama's client: pip install ollama")

USER = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def get_weather(city: str) -> str:
    """Get the weather.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


async def ask(site, use) -> Any:
    """Run the synchronous client beside the server's event loop."""
    with ollama.Client(host=site.server.address) as client:
        return await asyncio.to_thread(use, client)


def check(kind: type[BaseModel], text: str) -> None:
    """Validate an object in strict mode. It has no field that the client does not know."""
    kind.model_validate_json(text, strict=True)
    assert set(json.loads(text)) <= {field.alias or name for name, field in kind.model_fields.items()}


async def test_every_object_is_valid(start):
    site = await start(FakeClient(answer=f"<think>Well.</think>Yes. {CALL}"), tool_call_parser="hermes",
                       reasoning_parser="qwen3")  # fmt: skip
    tool = {"type": "function", "function": {"name": "get_weather"}}
    asked = {"model": "fake", "messages": USER, "tools": [tool], "logprobs": True, "think": True}
    for line in (await site.post("/api/chat", **asked)).text.splitlines():
        check(ollama.ChatResponse, line)
    check(ollama.ChatResponse, (await site.post("/api/chat", **asked, stream=False)).text)
    check(ollama.ChatResponse, (await site.post("/api/chat", model="fake")).text)
    for body in ({}, {"raw": True}):
        for line in (await site.post("/api/generate", model="fake", prompt="Hi", **body)).text.splitlines():
            check(ollama.GenerateResponse, line)
    check(ollama.EmbedResponse, (await site.post("/api/embed", model="fake", input=["a"])).text)
    check(ollama.EmbeddingsResponse, (await site.post("/api/embeddings", model="fake", prompt="a")).text)
    check(ollama.ShowResponse, (await site.post("/api/show", model="fake")).text)
    check(ollama.ListResponse, (await site.http.get("/api/tags")).text)
    check(ollama.ProcessResponse, (await site.http.get("/api/ps")).text)
    check(ollama.ProgressResponse, (await site.post("/api/pull", model="fake")).text)


async def test_chat_and_generate(site):
    answer = await ask(site, lambda client: client.chat("fake", USER, options={"temperature": 0}))
    assert (answer.message.content, answer.done_reason, answer.eval_count) == ("Hello, world.", "stop", 14)
    pieces = await ask(site, lambda client: list(client.chat("fake", USER, stream=True)))
    assert "".join(piece.message.content for piece in pieces) == "Hello, world."
    assert pieces[-1].done
    first = await ask(site, lambda client: client.generate("fake", "Hi"))
    second = await ask(site, lambda client: client.generate("fake", "Go on", context=first.context))
    assert (first.response, second.response) == ("Hello, world.",) * 2
    assert second.prompt_eval_count == len(first.context) + len("<user>Go on\n<assistant>")


async def test_a_function_is_called_and_its_result_is_sent_back(start):
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    answer = await ask(site, lambda client: client.chat("fake", USER, tools=[get_weather]))
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Bern"})
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    site.engine.answer = "It is sunny."
    asked = [*USER, answer.message, result]
    told = await ask(site, lambda client: client.chat("fake", asked, tools=[get_weather]))
    assert told.message.content == "It is sunny."


async def test_models_and_vectors(site):
    assert [one.model for one in (await ask(site, lambda client: client.list())).models] == ["fake:latest"]
    assert (await ask(site, lambda client: client.ps())).models[0].context_length == 512
    assert (await ask(site, lambda client: client.show("fake"))).capabilities == ["completion", "embedding"]
    assert (await ask(site, lambda client: client.embed("fake", ["a", "b"]))).embeddings[1] == [2.0, 98.0, 0.5]
    assert (await ask(site, lambda client: client.pull("fake"))).status == "success"


@pytest.mark.parametrize(
    ("use", "status", "message"),
    [
        (lambda client: client.chat("llama3", USER), 404, "model 'llama3' not found"),
        (lambda client: list(client.chat("llama3", USER, stream=True)), 404, "model 'llama3' not found"),
        (lambda client: list(client.pull("llama3", stream=True)), 400, "lsv serve MODEL"),
        (lambda client: client.delete("fake"), 400, "/api/delete is not available"),
        (lambda client: client.copy("fake", "other"), 400, "--served-model-name"),
        (lambda client: client.chat("fake", USER, options={"mirostat": 1}), 400, "options.mirostat"),
    ],
)
async def test_errors_are_the_clients_own(site, use, status, message):
    with pytest.raises(ollama.ResponseError, match=message) as caught:
        await ask(site, use)
    assert caught.value.status_code == status
