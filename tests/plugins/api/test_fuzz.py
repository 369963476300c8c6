"""Whatever JSON is sent, the answer is never a 5xx, and the server goes on."""

from __future__ import annotations

import json
import random

import pytest

from lsv_api.http.fields import UNAVAILABLE, field_names
from lsv_api.inference.records import TextRequest
from lsv_api.messages.records import MessagesCountRequest, MessagesRequest
from lsv_api.records import requests as bodies
from lsv_api.records.pooling import EmbeddingRequest

KINDS = {
    "/v1/chat/completions": bodies.ChatRequest,
    "/v1/completions": bodies.CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": MessagesCountRequest,
    "/tokenize": bodies.TokenizeRequest,
    "/detokenize": bodies.DetokenizeRequest,
    "/generate": TextRequest,
}
VALID = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "tokens": [72, 105],
    "max_tokens": 9,
}
ODD = [
    None, True, False, 0, 1, -1, 2, 7, 0.5, 1.5, -0.0, 1e308, -1e308, 2**31, 2**63, 2**64, 10**40, "",
    "a", "\x00", "é😀", "x" * 100, [], [0], [1, 2], [[1], [2]], ["a"], ["a", 1], [None], {}, {"a": 1},
    {"1": 5}, {"1": None}, [{"role": "user"}], [{"role": "user", "content": []}], [{"type": "text",
    "text": "x"}], {"include_usage": True}, {"type": "text"}, "token", "base64", [{"role": "assistant",
    "content": "Hi", "tool_calls": []}], [[[1]]], [-1], [259],
]  # fmt: skip


def make_body(rng: random.Random, path: str) -> dict[str, object]:
    """A valid body with some odd fields, so that most of the code is reached."""
    fields = sorted(field_names(KINDS[path]) | set(UNAVAILABLE))
    body = {name: value for name, value in VALID.items() if name in fields and rng.random() < 0.9}
    if path == "/tokenize":
        body.pop("messages", None)
    for _ in range(rng.choice([1, 1, 2, 3])):
        body[rng.choice(fields)] = rng.choice(ODD)
    return body


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
async def test_odd_values_never_break_the_server(start, path, seed):
    site = await start(request_templates=True)
    rng = random.Random(f"{path}{seed}")
    seen = set()
    for _ in range(250):
        body = make_body(rng, path)
        reply = await site.http.post(path, content=json.dumps(body).encode())
        assert reply.status_code < 500, (body, reply.text)
        assert b'"error":{' not in reply.content or reply.status_code >= 400, (body, reply.text)
        seen.add(reply.status_code)
    assert {200, 400} <= seen


async def test_random_bytes_never_break_the_server(site):
    rng = random.Random(3)
    whole = json.dumps(VALID).encode()
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reply = await site.http.post("/v1/completions", content=bytes(data[: rng.randint(1, len(data))]))
        assert reply.status_code in (200, 400), (data, reply.text)
