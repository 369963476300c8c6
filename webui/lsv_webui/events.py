"""The server-sent events of a streamed answer, and the header that carries a key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from lsv_base.errors import BadRequest, Unavailable

CUT = "The connection to the server broke off before the answer was complete. Ask again."
"""An answer that has begun but will not end."""


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def read_events(lines: AsyncIterator[str], *, marked: bool = False) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream, up to ``[DONE]``; raises ``BadRequest`` on an error event.

    Raises ``Unavailable`` for a stream that was cut short: in a line, or with ``marked`` before that mark.
    """
    ended = False
    async for line in lines:
        data = line.removeprefix("data:").strip()
        ended = ended or data == "[DONE]"
        if ended or not line.startswith("data:"):
            continue
        try:
            event: dict[str, Any] = json.loads(data)
        except ValueError:  # the last line of a stream that is cut in the middle of it
            raise Unavailable(CUT) from None
        if event.get("error"):
            raise BadRequest(read_error(event) or "The server reports an error without a message.")
        yield event
    if marked and not ended:
        raise Unavailable(CUT)


def read_error(body: Any) -> str:
    """The message of an error in OpenAI's form, ``{"error": {"message": …}}``, or in the forms that others give it."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error") or body.get("detail") or body.get("message") or ""
    if isinstance(error, dict):
        error = error.get("message") or ""
    return error if isinstance(error, str) else json.dumps(error)
