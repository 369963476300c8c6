"""Errors of Anthropic's Messages: their form, their status codes, and the fields that they name."""

from __future__ import annotations

import pytest

from lsv_api.limits import Limits
from lsv_base.errors import EngineDied, Overloaded, RequestFailed, Unavailable
from suite.messages import USER, ask, events, refused


async def test_a_stranger_reads_errors_in_this_form(start):
    site = await start(api_keys=("k",))
    denied = await ask(site)
    assert denied.status_code == 401
    assert denied.json()["type"] == "error"
    assert denied.json()["error"]["type"] == "authentication_error"
    reply = await site.http.post(
        "/v1/messages?beta=true",
        headers={"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"},
        json={"max_tokens": 3, "messages": USER},
    )
    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Overloaded("full"), 529, "overloaded_error"),
        (Unavailable("loading"), 529, "overloaded_error"),
        (EngineDied("gone"), 500, "api_error"),
        (RequestFailed("nan"), 500, "api_error"),
    ],
)
async def test_failures_of_the_engine(start, failure, status, kind):
    site = await start()
    site.engine.failure = failure
    reply = await ask(site)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
    site.engine.fail_after = 2
    last = events((await ask(site, stream=True)).text)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", kind)


async def test_other_errors(start):
    site = await start(limits=Limits(text_bytes=300))
    missing = await ask(site, model="claude-4")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    large = await ask(site, system="x" * 400)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    wrong = await site.http.get("/v1/messages")
    assert wrong.status_code == 405


async def test_large_bodies_are_refused(start):
    site = await start(limits=Limits(lists=20, messages=4, tools=2))
    blocks = [{"type": "text", "text": "a"}] * 30
    assert "--api-max-messages" in await refused(site, messages=USER * 5)
    await refused(site, messages=[{"role": "user", "content": blocks}])
    await refused(site, tools=[{"name": f"f{n}", "input_schema": {}} for n in range(3)])


async def test_a_text_to_count_is_bounded(start):
    site = await start(limits=Limits(uncut=5000))
    long = [{"role": "user", "content": "x" * 30000}]
    reply = await site.post("/v1/messages/count_tokens", messages=long)
    assert reply.status_code == 400
    assert "characters are too many to be tokenised" in reply.json()["error"]["message"]


async def test_a_prompt_that_is_too_long_says_so(site):
    """Clients shorten the conversation when they read this."""
    message = await refused(site, messages=[{"role": "user", "content": "x" * 2000}])
    assert message.startswith("prompt is too long: ")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}

PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [*USER, {"role": "user", "content": []}]}, "messages[1].content must not be empty"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]: this model takes text"),
        (
            {"system": "S", "messages": [*USER, {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
            "messages[1].content[1]: this model takes text",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type: blocks of type 'server_tool_use'",
        ),
        (
            {"messages": [{"role": "user", "content": [PDF]}]},
            "messages[0].content[0].source: sources of type 'base64'",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}]},
            "messages[1] calls tools",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type: 'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}}], "tool_choice": {"type": "any"}},
            "tools[0].input_schema.type must be object",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice is required, and there are no tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens must be at least 1"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens is for type enabled"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not available"),
        ({"container": "c"}, "container is not available"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0]: this server edits no conversations",
        ),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequence": ["x"]}, "Unknown field 'stop_sequence'; did you mean 'stop_sequences'?"),
    ],
)  # fmt: skip
async def test_bad_bodies_name_the_field(start, body, message):
    site = await start(tool_call_parser="hermes")
    assert (await refused(site, **body)).startswith(message)
