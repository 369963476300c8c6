"""The commands of docs/tools.md run as they stand there, and its tables name every parser."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from lsv_parsers.plugin import lsv_reasoning_parsers, lsv_tool_parsers
from lsv_testing.fakes.client import FakeClient

TEXT = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>'


class Answering(FakeClient):
    """Calls the tool until it has seen its result."""

    async def generate(self, request):
        self.answer = "It is sunny." if b"<tool>sunny" in bytes(request.prompt.ids) else CALL
        async for chunk in super().generate(request):
            yield chunk


async def test_commands(start, capsys):
    site = await start(Answering(), names=("Qwen/Qwen3-8B",), tool_call_parser="hermes")
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    program = compile(code.replace("http://localhost:8000", site.server.address), "tools.md", "exec")
    names: dict[str, Any] = {}
    await asyncio.to_thread(exec, program, names)
    names["client"].close()
    shown = capsys.readouterr().out
    assert "It is sunny." in shown
    assert "0 get_weather" in shown


def test_every_parser_is_listed():
    for offer in (*lsv_tool_parsers(), *lsv_reasoning_parsers()):
        assert f"`{offer.name}`" in TEXT, offer.name
