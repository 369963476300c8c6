"""The Responses API on lsv-demo."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

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


def test_a_picture_is_seen_as_in_the_chat_completion_that_shows_it(server) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    text = "What colour is it?"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    chat = json.loads(post(server, "/v1/chat/completions", messages=[{"role": "user", "content": parts}]))
    shown = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
    found = check_response(post(server, "/v1/responses", input=[{"role": "user", "content": shown}]))
    assert "red" in found.output_text.lower()
    assert found.output_text == chat["choices"][0]["message"]["content"]
    assert found.usage.input_tokens == chat["usage"]["prompt_tokens"]


def test_a_killed_server_shows_its_responses_after_its_restart(own_server, tmp_path: Path) -> None:
    file = ("--api-responses-path", str(tmp_path / "responses.db"), "--max-model-len", "1024", "--max-num-seqs", "4")
    first = own_server(*file)
    first.wait_until_ready()
    found = check_response(post(first, "/v1/responses", input="Who are you?"))
    engine = first.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    working = check_response(post(first, "/v1/responses", input="Who are you?", background=True))
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    os.kill(engine, signal.SIGKILL)
    second = own_server(*file)
    second.wait_until_ready()
    status, body = second.get(f"/v1/responses/{found.id}")
    assert status == 200
    assert check_response(body) == found
    status, body = second.get(f"/v1/responses/{working.id}")
    assert (status, check_response(body).status) == (200, "failed")
    on = check_response(post(second, "/v1/responses", input="And?", previous_response_id=found.id))
    assert on.usage.input_tokens > found.usage.total_tokens
