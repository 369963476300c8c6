"""Checks bodies and events against the models of OpenAI's client, which by itself takes anything."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_BEYOND = {
    "bytes": "log probabilities in events have the bytes that those of whole responses have",
    "store": "Open Responses asks for it",
    "presence_penalty": "Open Responses asks for it",
    "frequency_penalty": "Open Responses asks for it",
}
"""Fields that the client's models lack, and why they are sent."""


def check_response(data: str | bytes) -> Response:
    """A response, in strict mode and without a field that its model does not have."""
    found = Response.model_validate_json(data, strict=True)
    _check_known(found)
    return found


def read_events(text: str) -> list[Any]:
    """The events of a stream, each checked: its name, its model, its number, and the end mark."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    found = []
    for number, block in enumerate(block for block in blocks if not block.startswith(":")):
        name, data = (line.partition(": ")[2] for line in block.split("\n"))
        event = _EVENT.validate_json(data, strict=True)
        assert json.loads(data)["type"] == event.type == name
        _check_known(event)
        assert event.sequence_number == number
        found.append(event)
    return found


def _check_known(model: BaseModel) -> None:
    """Raises ``AssertionError`` for fields that no model has, at any depth."""
    extra = {name for name in model.model_extra or {} if name not in _BEYOND}
    assert not extra, f"{type(model).__name__} has no {extra}"
    for value in vars(model).values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                _check_known(inner)
