"""Targets: bodies of requests, as JSON and as forms."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lsv_api.http.bodies import decode_body
from lsv_api.http.forms import decode_form
from lsv_api.http.payloads import SHORTEST
from lsv_api.records import pooling, requests
from trials.fuzz.mutate import mutate_bytes, mutate_json
from trials.fuzz.target import Read, Target

_PICTURE = base64.b64encode(bytes(SHORTEST)).decode()
_PARTS = [
    {"type": "text", "text": "?"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PICTURE}"}},
    {"type": "input_audio", "input_audio": {"data": _PICTURE, "format": "wav"}},
]
_SAMPLED = {
    "model": "m", "stream": True, "stream_options": {"include_usage": True}, "n": 2, "temperature": 0.5, "top_p": 0.9,
    "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["a", "b"], "max_tokens": 5, "logit_bias": {"5": 1.0},
    "presence_penalty": 0.5, "user": "u", "priority": 1,
}  # fmt: skip
_BODIES: dict[type[msgspec.Struct], Sequence[dict[str, object]]] = {
    requests.ChatRequest: (
        {**_SAMPLED, "messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": _PARTS}], "chat_template_kwargs": {"a": 1}, "tools": []},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
            ]
        },
    ),
    requests.CompletionRequest: ({**_SAMPLED, "prompt": ["a", "b"]}, {"prompt": [[1, 2], [3]], "echo": True}),
    pooling.EmbeddingRequest: (
        {"input": ["a"], "encoding_format": "base64"},
        {"messages": [{"role": "user", "content": _PARTS}], "enable_chunked_processing": False},
    ),
    pooling.RerankRequest: ({"query": "a", "documents": ["b", {"content": _PARTS}], "top_n": 1},),
    requests.TokenizeRequest: ({"prompt": "x", "add_special_tokens": True},),
    requests.DetokenizeRequest: ({"tokens": [1, 2, 3]},),
}
_BOUNDARY = "XX"


def _seeds(kind: type[msgspec.Struct]) -> Callable[[], Sequence[bytes]]:
    return lambda: [json.dumps(body).encode() for body in _BODIES[kind]]


def _reader(kind: type[msgspec.Struct]) -> Callable[[Path], Read]:
    def read(data: bytes) -> None:
        decode_body(data, kind)

    return lambda folder: read


def _form() -> Sequence[bytes]:
    fields = {"model": b"m", "temperature": b"0.5", "timestamp_granularities[]": b"segment", "file": bytes(64)}
    parts = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, value in fields.items()
    )
    return [b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()]


def _form_reader(folder: Path) -> Read:
    def read(data: bytes) -> None:
        decode_form(data, f"multipart/form-data; boundary={_BOUNDARY}", requests.SpeechRequest)

    return read


BODIES = (
    *(Target(f"body-{kind.__name__}", _seeds(kind), mutate_json, _reader(kind)) for kind in _BODIES),
    Target("body-form", _form, mutate_bytes, _form_reader),
)
