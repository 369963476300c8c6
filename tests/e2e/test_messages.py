"""Anthropic's Messages on a real model: the same tokens as a chat, and pictures."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from typing import Any

import pytest
from PIL import Image, ImageDraw

pytestmark = pytest.mark.xdist_group("server")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city.", "input_schema": SCHEMA}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": SCHEMA}


def post(server: Any, path: str, **body: Any) -> Any:
    data = json.dumps({"max_tokens": 60, "temperature": 0, **body}).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def texts(message: Any) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def circle() -> str:
    file, picture = io.BytesIO(), Image.new("RGB", (224, 224), "white")
    ImageDraw.Draw(picture).ellipse((56, 56, 168, 168), fill="red")
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("question", ["Who are you?", "What is the capital of Spain?"])
def test_the_same_tokens_as_a_chat(server, question) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    chat = post(server, "/v1/chat/completions", messages=turns)
    message = post(server, "/v1/messages", messages=turns[1:], system="Be brief.")
    assert texts(message) == chat["choices"][0]["message"]["content"]
    used = message["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert used["output_tokens"] == chat["usage"]["completion_tokens"]
    counted = post(server, "/v1/messages/count_tokens", messages=turns[1:], system="Be brief.")
    assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}


def test_the_same_call_as_in_a_chat(server) -> None:
    turns = [{"role": "user", "content": "What is the weather in Bern?"}]
    chat = post(server, "/v1/chat/completions", messages=turns, tools=[{"type": "function", "function": FUNCTION}])
    message = post(server, "/v1/messages", messages=turns, tools=[WEATHER])
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    (block,) = [block for block in message["content"] if block["type"] == "tool_use"]
    assert (block["name"], block["input"]) == ("get_weather", json.loads(call["function"]["arguments"]))
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
    turns += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    assert "sunny" in texts(post(server, "/v1/messages", messages=turns, tools=[WEATHER]))


def test_pictures(server) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": circle()}
    question = {"type": "text", "text": "What colour is it?"}
    turns = [{"role": "user", "content": [{"type": "image", "source": source}, question]}]
    link = {"url": f"data:image/png;base64,{source['data']}"}
    told = [{"role": "user", "content": [{"type": "image_url", "image_url": link}, question]}]
    message = post(server, "/v1/messages", messages=turns)
    chat = post(server, "/v1/chat/completions", messages=told)
    assert "red" in texts(message).lower()
    assert texts(message) == chat["choices"][0]["message"]["content"]
    counted = post(server, "/v1/messages/count_tokens", messages=turns)
    assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}


def test_a_picture_that_a_tool_gives(server) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": circle()}
    call = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "What colour is it?"}]},
    ]
    with_picture = post(server, "/v1/messages/count_tokens", messages=turns)["input_tokens"]
    result["content"] = "none"
    assert with_picture > post(server, "/v1/messages/count_tokens", messages=turns)["input_tokens"]
