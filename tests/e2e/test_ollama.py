"""Ollama's API over lsv-demo: the same answers as chat completions give, and pictures, tools and forms."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx2
import pytest
from PIL import Image

pytestmark = pytest.mark.xdist_group("server")

ASKED = [{"role": "user", "content": "What is the capital of Spain?"}]
GREEDY = {"temperature": 0, "num_predict": 48}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def post(server, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx2.post(f"{server.url}{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(server, messages: list[Any] = ASKED, **body: Any) -> dict[str, Any]:
    return post(server, "/api/chat", model="lsv-demo", messages=messages, stream=False, options=GREEDY, **body)


@pytest.mark.parametrize("think", [None, True, False])
def test_the_same_request_gets_the_same_tokens_and_counts(server, think: bool | None) -> None:
    switch = {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}
    theirs = post(server, "/v1/chat/completions", messages=ASKED, temperature=0, max_tokens=48, **switch)
    ours = chat(server, **({} if think is None else {"think": think}))
    message = theirs["choices"][0]["message"]
    assert ours["message"]["content"] == message["content"]
    assert ours["message"].get("thinking") == message["reasoning_content"]
    assert (ours["prompt_eval_count"], ours["eval_count"]) == (
        theirs["usage"]["prompt_tokens"],
        theirs["usage"]["completion_tokens"],
    )
    with httpx2.stream(
        "POST",
        f"{server.url}/api/chat",
        json={"model": "lsv-demo:latest", "messages": ASKED, "options": GREEDY, "think": think},
    ) as reply:
        pieces = [json.loads(line) for line in reply.iter_lines()]
    assert "".join(piece["message"]["content"] for piece in pieces) == message["content"]
    assert pieces[-1]["eval_count"] == ours["eval_count"]


def test_generate_answers_as_chat_does(server) -> None:
    answer = post(server, "/api/generate", model="lsv-demo", prompt=ASKED[0]["content"], stream=False, options=GREEDY)
    assert answer["response"] == chat(server)["message"]["content"]
    assert len(answer["context"]) == answer["prompt_eval_count"] + answer["eval_count"]
    raw = post(
        server,
        "/api/generate",
        model="lsv-demo",
        prompt="The capital of Spain is",
        raw=True,
        stream=False,
        options=GREEDY,
    )
    theirs = post(server, "/v1/completions", prompt="The capital of Spain is", temperature=0, max_tokens=48)
    assert raw["response"] == theirs["choices"][0]["text"]


def test_tools_pictures_and_forms(server) -> None:
    question = {"role": "user", "content": "What is the weather in Bern?"}
    called = chat(server, [question], tools=[WEATHER])["message"]
    (call,) = called["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Bern"}}
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny, 21 degrees in Bern"}
    assert "sunny" in chat(server, [question, called, result], tools=[WEATHER])["message"]["content"]
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (255, 0, 0)).save(file, "PNG")
    picture = base64.b64encode(file.getvalue()).decode()
    seen = chat(server, [{"role": "user", "content": "What colour is this?", "images": [picture]}])
    assert "red" in seen["message"]["content"].lower()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert set(json.loads(chat(server, format=schema)["message"]["content"])) == {"city"}


def test_vectors_have_unit_length(server) -> None:
    (vector,) = post(server, "/api/embed", model="lsv-demo", input="a")["embeddings"]
    assert sum(number * number for number in vector) == pytest.approx(1)
