"""The Responses API on lsv-demo."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from suite.openai_models import check_response, read_events

pytestmark = pytest.mark.xdist_group("server")

QUESTION = "What is the weather in Bern?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": PARAMETERS}


def post(server: Any, path: str, **body: Any) -> bytes:
    sent = json.dumps({"temperature": 0, **body}).encode()
    request = urllib.request.Request(server.url + path, sent, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())


def test_a_response_has_the_tokens_of_the_chat_completion_that_says_the_same(server) -> None:
    chat = json.loads(
        post(
            server,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": QUESTION}],
            tools=[{"type": "function", "function": WEATHER}],
        )
    )
    asked = {"input": QUESTION, "tools": [{"type": "function", **WEATHER}]}
    whole = check_response(post(server, "/v1/responses", **asked))
    streamed = read_events(post(server, "/v1/responses", **asked, stream=True).decode())[-1].response
    call = chat["choices"][0]["message"]["tool_calls"][0]["function"]
    for response in (whole, streamed):
        assert (response.output[0].name, response.output[0].arguments) == (call["name"], call["arguments"])
        assert response.usage.output_tokens == chat["usage"]["completion_tokens"]
        assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
