"""What schemathesis is told about lsv: names that exist, short answers, and how to check the events of streams."""

from __future__ import annotations

import io
import json
import wave
from typing import Any

import jsonschema_rs
import schemathesis

_MODEL = "lsv-demo"
_SHORT = {"max_tokens": 8, "max_completion_tokens": 8, "min_tokens": 4, "n": 2, "best_of": 3}
"""Valid values above these become these: what matters is that they are valid, not how long the answer is."""
_MOST = 1 << 31
_DONE = "[DONE]"


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Replace valid values by valid ones only, so that a body that must be refused stays one."""
    if not isinstance(body, dict):
        return body
    changed = {name: _plain(value, name) for name, value in body.items()}
    if not changed.get("stream") and isinstance(changed.get("stream_options"), dict | None):
        changed.pop("stream_options", None)
    for message in changed["messages"] if isinstance(changed.get("messages"), list) else ():
        if isinstance(message, dict) and message.get("content", "") in (None, ""):
            message["content"] = "What is 3 plus 4?"
    if isinstance(changed.get("model"), str) and len(changed["model"]) % 4:
        changed["model"] = _MODEL
    if context.operation.path.endswith("/completions") and changed.get("max_tokens") is None:
        changed["max_tokens"] = 8
    for name, most in _SHORT.items():
        value = changed.get(name)
        if type(value) is int and most < value < (128 if name in ("n", "best_of") else _MOST):
            changed[name] = most
    if "file" in changed and len(str(changed.get("language"))) % 2:
        changed["file"] = _sound()
    return changed


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> Any:
    if path_parameters and len(str(path_parameters.get("name", ""))) % 2:
        return {**path_parameters, "name": _MODEL}
    return path_parameters


@schemathesis.check
def events_are_valid(ctx: Any, response: Any, case: Any) -> None:
    """Each event of a stream is an event or an error as described, and ``[DONE]`` is the last."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    document = case.operation.schema.raw_schema
    described = case.operation.definition.raw["responses"]["200"]["content"]["text/event-stream"]["schema"]
    content = described["properties"]["data"]["anyOf"][0]["contentSchema"]
    validator = jsonschema_rs.validator_for({**content, "components": document["components"]})
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert events, f"a stream without events: {response.text[:300]!r}"
    assert events[-1] == _DONE, f"a stream that ends with {events[-1][:300]!r}"
    for event in events[:-1]:
        data = json.loads(event)
        assert validator.is_valid(data), f"an event that is not as described: {event[:500]}"
        if "error" in data:
            assert data["error"]["type"] != "server_error", f"a stream that the server failed: {event[:500]}"


def _plain(value: Any, name: str = "") -> Any:
    """Whole numbers without a fraction, since lsv does not take 8.0 for an integer, and token ids that exist."""
    if isinstance(value, dict):
        return {inner: _plain(one, inner) for inner, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, name) for one in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    known = name in ("prompt", "input", "tokens", "allowed_token_ids", "stop_token_ids")
    return value % 1000 if known and type(value) is int and value >= 0 else value


def _sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(16_000))
    return file.getvalue()
