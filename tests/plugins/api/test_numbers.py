"""Numbers out of range are refused with the field's name, and never cause an error of the server."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from lsv_api.records.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from lsv_api.records.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from lsv_base.processes.wire import encode_frame
from lsv_testing.fakes.client import FakeClient
from suite.sites import Site, StartSite

MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES}),
    "/v1/completions": (CompletionRequest, {"prompt": "Hi"}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "Hi"}),
    "/pooling": (PoolingRequest, {"input": "Hi"}),
    "/classify": (ClassifyRequest, {"input": "Hi"}),
    "/score": (ScoreRequest, {"text_1": "a", "text_2": "b"}),
    "/rerank": (RerankRequest, {"query": "a", "documents": ["b"]}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}
FAR = (1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, -(1 << 63), -(1 << 64), 1e308, -1e308)


def spellings(hint: Any, value: float) -> list[Any]:
    """Bodies that put a number into a field of this type."""
    kinds = (hint, *get_args(hint))
    found: list[Any] = [value] if int in kinds or float in kinds else []
    for kind in kinds:
        found += [[value]] if int in get_args(kind) and getattr(kind, "__origin__", None) is list else []
    return found


def numbers() -> list[tuple[str, str]]:
    """All routes and fields that take numbers."""
    return [
        (route, name)
        for route, (kind, _) in ROUTES.items()
        for name, hint in get_type_hints(kind).items()
        if spellings(hint, 1)
    ]


@pytest.fixture
async def site(start: StartSite) -> Site:
    return await start(FakeClient(answer="Hi"), reasoning_parser="qwen3")


def test_fields_are_found():
    assert {("/v1/chat/completions", "thinking_token_budget"), ("/detokenize", "tokens")} <= set(numbers())
    assert len(numbers()) > 50


@pytest.mark.parametrize(("route", "name"), numbers())
async def test_a_number_out_of_range(site: Site, route: str, name: str):
    kind, body = ROUTES[route]
    for far in FAR:
        for value in spellings(get_type_hints(kind)[name], far):
            site.engine.requests.clear()
            reply = await site.post(route, **(body | {name: value}))
            assert reply.status_code < 500, (value, reply.text)
            for request in site.engine.requests:
                encode_frame(request)


async def test_a_budget_of_thoughts_is_bounded(site: Site):
    for budget in (1 << 64, (1 << 31) + 1, -2):
        reply = await site.chat(thinking_token_budget=budget)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "thinking_token_budget")
    assert (await site.chat(thinking_token_budget=1 << 31)).status_code == 200


@pytest.mark.parametrize("where", ["tools", "response_format", "chat_template_kwargs", "logit_bias", "documents"])
async def test_numbers_inside_of_objects(site: Site, where: str):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 1 << 70}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    bodies: dict[str, dict[str, Any]] = {
        "tools": {"tools": [tool], "tool_choice": "required"},
        "response_format": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "chat_template_kwargs": {"chat_template_kwargs": {"a": 1 << 70}},
        "logit_bias": {"logit_bias": {"5": 1 << 70}},
        "documents": {"documents": [{"text": 1 << 70}]},
    }
    reply = await site.chat(**bodies[where])
    assert reply.status_code < 500, reply.text
    for request in site.engine.requests:
        encode_frame(request)
