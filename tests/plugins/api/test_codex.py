"""Requests of Codex, as it sent them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lsv_testing.fakes.client import FakeClient, fake_config
from suite.openai_models import read_events

SESSION = Path(__file__).parent / "data" / "codex.jsonl"


def session() -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in SESSION.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("sent", session(), ids=["asks", "has read", "has edited", "has closed an agent"])
async def test_requests_of_codex(start, sent):
    """As it sent them in sessions that edited a file and closed an agent; long texts are shortened."""
    call = '<tool_call>{"name": "multi_agent_v1__close_agent", "arguments": {"target": "a"}}</tool_call>'
    engine = FakeClient(fake_config(max_model_len=60000), answer=f"<think>Hm.</think>{call}")
    site = await start(engine, tool_call_parser="hermes", reasoning_parser="qwen3", api_keys=("local-key",))
    reply = await site.http.post(sent["path"], headers=sent["headers"], json=sent["body"])
    assert reply.status_code == 200, reply.text
    found = read_events(reply.text)[-1].response
    assert [item.type for item in found.output] == ["reasoning", "function_call"]
    assert (found.output[1].name, found.output[1].namespace) == ("close_agent", "multi_agent_v1")
    assert "web_search" not in [tool.type for tool in found.tools]
    prompt = bytes(token for token in engine.requests[0].prompts[0].ids if token < 256).decode()
    assert "<tool>multi_agent_v1__close_agent" in prompt
