"""Conversations of Ollama's API as chat completions have them: images, calls and results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lsv.media.content_parts import InlinePart
from lsv_api.http.bodies import decode_body
from lsv_api.http.payloads import SHORTEST
from lsv_api.limits import Limits
from lsv_api.ollama.naming import naming_chat_fields, naming_generate_fields
from lsv_api.ollama.reading import read_messages
from lsv_api.ollama.records import OllamaChatRequest, OllamaGenerateRequest, OllamaMessage
from lsv_base.errors import BadRequest, TooLarge

LONG = "QUJD" * (SHORTEST // 4)
OTHER = "REVG" * (SHORTEST // 4)


def read(*messages: dict[str, Any]) -> list[Any]:
    return read_messages([msgspec.convert(message, OllamaMessage) for message in messages])


def test_images_come_before_the_text() -> None:
    (message,) = read({"role": "user", "content": "What is it?", "images": ["QUJD", "REVG"]})
    first, second, text = message.content
    assert [part.payload for part in (first, second)] == [b"QUJD", b"REVG"]
    assert all(isinstance(part, InlinePart) and part.type == "image_url" for part in (first, second))
    assert text == "What is it?"
    (alone,) = read({"role": "user", "content": "", "images": ["QUJD"]})
    assert len(alone.content) == 1


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"a": 1}}, **more}


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def test_results_get_the_ids_of_their_calls() -> None:
    asked, *results = read(
        {"role": "assistant", "tool_calls": [call("f"), call("g"), call("f", id="mine")]},
        result("3", tool_call_id="mine"),
        result("2", tool_name="g"),
        result("1", tool_name="f"),
    )
    ids = [made.id for made in asked.tool_calls]
    assert ids[2] == "mine"
    assert all(len(id) == 9 and id.isalnum() for id in ids[:2])
    assert [message.tool_call_id for message in results] == [ids[2], ids[1], ids[0]]
    assert asked.content is None
    assert asked.tool_calls[0].function.arguments == {"a": 1}


def test_results_without_names_follow_the_order_of_calls_over_turns() -> None:
    first, one, second, two, stray = read(
        {"role": "assistant", "tool_calls": [call("f")]},
        result("1"),
        {"role": "assistant", "tool_calls": [call("f")]},
        result("2"),
        result("3"),
    )
    assert one.tool_call_id == first.tool_calls[0].id
    assert two.tool_call_id == second.tool_calls[0].id
    assert first.tool_calls[0].id != second.tool_calls[0].id
    assert stray.tool_call_id is None


def test_thoughts_of_earlier_turns_are_kept() -> None:
    (message,) = read({"role": "assistant", "content": "Yes.", "thinking": "Well."})
    assert (message.content, message.reasoning_content) == ("Yes.", "Well.")


SMALL = Limits(text_bytes=4096)


@pytest.mark.parametrize("images", [[LONG], [LONG, OTHER], ["QUJD", LONG, "QUJD", OTHER], [LONG, "QUJD"]])
@pytest.mark.parametrize("indent", [None, 2])
def test_long_images_do_not_count_as_text(images: list[str], indent: int | None) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "images": images, "content": "b"}]
    chat = json.dumps({"model": "m", "messages": messages}, indent=indent).encode()
    found = decode_body(chat, OllamaChatRequest, SMALL).messages
    assert found is not None
    assert found[1].images == images
    text = json.dumps({"model": "m", "images": images, "prompt": "b"}, indent=indent).encode()
    assert decode_body(text, OllamaGenerateRequest, SMALL).images == images


@pytest.mark.parametrize("shift", range(0, SHORTEST, SHORTEST // 16))
def test_no_image_of_a_list_is_overlooked(shift: int) -> None:
    body = {"prompt": "x" * shift, "images": [LONG, OTHER, "QUJD", OTHER]}
    found = decode_body(json.dumps(body).encode(), OllamaGenerateRequest, Limits(text_bytes=shift + 4096))
    assert found.images == body["images"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": LONG},
        {"context": [1], "options": {"stop": ["a", LONG]}},
        {"images": ["QUJD"], "system": LONG},
        {"images": ["QUJD"], "format": {"images": [LONG]}},
    ],
)
def test_long_texts_count_as_text(body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    with pytest.raises(TooLarge, match="without its media"):
        decode_body(data, OllamaGenerateRequest, SMALL)
    plain = msgspec.json.decode(data, type=OllamaGenerateRequest)
    assert decode_body(data, OllamaGenerateRequest) == plain


def test_errors_name_the_image() -> None:
    with pytest.raises(BadRequest, match=r"^messages\[3\]\.images\[1\]: not an image") as chat, naming_chat_fields():
        raise BadRequest("messages[3].content[1]: not an image", param="messages[3].content[1]")
    assert chat.value.param == "messages[3].images[1]"
    with pytest.raises(BadRequest, match=r"^images\[1\]: not an image"), naming_generate_fields():
        raise BadRequest("messages[0].content[1]: not an image", param="messages[0].content[1]")
