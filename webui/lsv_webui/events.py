"""The server-sent events of a streamed answer, and the header that carries a key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from lsv.errors import BadRequest


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream, up to ``[DONE]``; raises ``BadRequest`` on an error event."""
    async for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise BadRequest(str(event["error"].get("message", event["error"])))
        yield event
