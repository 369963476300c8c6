"""Asking a site in Anthropic's form, and reading its streams."""

from __future__ import annotations

import json
from typing import Any

from lsv_testing.fakes.client import FakeClient

USER = [{"role": "user", "content": "Weather?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
THINKS = f"<think>Hm. Well.</think>Let me see.{CALL}"
SECRET = {"api.signing_key": "s"}


async def ask(site: Any, **body: Any) -> Any:
    return await site.post("/v1/messages", **({"max_tokens": 200, "messages": USER} | body))


async def answer(site: Any, **body: Any) -> Any:
    reply = await ask(site, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def shown(site: Any, **body: Any) -> str:
    """The prompt that a body makes."""
    await answer(site, **body)
    return site.engine.requests[-1].prompts[0].text


def events(text: str) -> list[Any]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(found: list[Any]) -> list[Any]:
    """The blocks of a stream, put together."""
    blocks: list[Any] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | ({"input": ""} if "input" in event["content_block"] else {}))
        if event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            for key, value in event["delta"].items():
                if key != "type":
                    blocks[-1]["input" if key == "partial_json" else key] += value
    return [block | ({"input": json.loads(block["input"])} if "input" in block else {}) for block in blocks]


async def refused(site: Any, **body: Any) -> str:
    reply = await ask(site, **body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    return reply.json()["error"]["message"]


async def thinker(start: Any, text: str = THINKS, **options: Any) -> Any:
    return await start(FakeClient(answer=text), tool_call_parser="hermes", reasoning_parser="qwen3", **options)
