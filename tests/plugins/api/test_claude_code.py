"""Requests of Claude Code, as it sent them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lsv_api.messages.signatures import Signer
from lsv_testing.fakes.client import FakeClient, fake_config
from suite.messages import SECRET, events, joined

SESSION = Path(__file__).parent / "data" / "claude_code.jsonl"


def session() -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in SESSION.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("sent", session(), ids=["asks", "has read", "has edited", "with effort"])
async def test_requests_of_claude_code(start, sent):
    """As it sent them in a session that edited a file; long texts are shortened."""
    edit = '<tool_call>{"name": "Edit", "arguments": {"file_path": "a", "old_string": "b"}}</tool_call>'
    engine = FakeClient(fake_config(max_model_len=40000), answer=f"<think>Hm.</think>{edit}")
    site = await start(engine, tool_call_parser="hermes", reasoning_parser="qwen3", settings=SECRET,
                       api_keys=("local-key",), model_aliases={"claude-*": "fake", "lsv-*": "fake"})  # fmt: skip
    body = json.dumps(sent["body"])
    for block in (block for turn in sent["body"]["messages"] for block in turn["content"] if isinstance(block, dict)):
        if block["type"] == "thinking":
            body = body.replace("SIGNATURE", Signer("s").sign(block["thinking"]))
    reply = await site.http.post(sent["path"], headers=sent["headers"], content=body)
    assert reply.status_code == 200, reply.text
    thinking, call = joined(events(reply.text))
    assert thinking["thinking"] == "Hm."
    assert (call["name"], call["input"]) == ("Edit", {"file_path": "a", "old_string": "b"})
    assert "cc_version" not in engine.requests[0].prompts[0].text
