"""One answer as it streams in: its text so far, its speed, and why it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from lsv_base.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat import thinking
from lsv_webui.chat.conversation import Message, ToolCall

REDRAW_SECONDS = 0.05
"""Tokens that arrive faster than this are drawn together."""

MEASURABLE_SECONDS = 0.1
"""Shorter answers give no speed: this process may have been busy for as long."""

_ENDS = {
    "length": "cut off at the length limit",
    "tool_calls": "asks for a tool",
    "content_filter": "withheld by a content filter",
}
"""What is said of finish reasons other than the usual one."""


class Answer:
    """Reads the events of a stream into a message. ``pieces`` counts what has been added to it."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.pieces = 0
        self._began = time.perf_counter()
        self._first: float | None = None
        self._last = self._began
        self._tokens = 0
        self._end = ""
        self._reasoning = self._content = ""

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in one event: a piece of the answer, the finish reason, or the usage."""
        for choice in event.get("choices", ()):
            self._read_delta(choice.get("delta") or {})
            self._end = _ENDS.get(choice.get("finish_reason"), self._end)
        if usage := event.get("usage"):
            self._tokens = usage["completion_tokens"]

    def _read_delta(self, delta: Mapping[str, Any]) -> None:
        """Servers differ in what they call thinking; without a parser of their own they leave it in the content."""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content, calls = delta.get("content") or "", delta.get("tool_calls") or ()
        if not (reasoning or content or calls):
            return
        self.pieces += 1
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._reasoning += reasoning
        self._content += content
        inline, self.message.text = thinking.part(self._content)
        self._think(self._reasoning + inline)
        for call in calls:
            _extend(self.message.calls, call)

    def _think(self, thoughts: str) -> None:
        if thoughts != self.message.thinking:
            self.message.thinking = thoughts
            self.message.thinking_seconds = self._last - (self._first or self._last)

    def end(self, *, stopped: bool = False) -> None:
        """Write the figures shown below the answer."""
        found = " · ".join(filter(None, (*self._figures(), "stopped" if stopped else self._end)))
        self.message.note = found or ("" if self.message.error else "an empty answer")

    def _figures(self) -> tuple[str, ...]:
        if self._first is None:
            return ()
        ttft = f"first token {duration(self._first - self._began)}"
        writing = self._last - self._first
        tells = self._tokens > 1 and writing >= MEASURABLE_SECONDS
        speed = f"{(self._tokens - 1) / writing:,.0f} tok/s" if tells else ""
        return (ttft, speed, f"{self._tokens:,} tokens" if self._tokens else "")


async def write(
    api: Api, body: Mapping[str, Any], message: Message, stop: asyncio.Event, key: str | None = None
) -> AsyncGenerator[None, None]:
    """Stream the server's answer into ``message``; yields when there is something new to draw.

    Reading does not wait for drawing, so the figures are the server's. Once ``stop`` is set the request is aborted and
    what came so far stays. An error becomes the message's.
    """
    answer, drawn = Answer(message), 0
    reading = asyncio.create_task(_read(api, body, answer, key))
    stopping = asyncio.create_task(stop.wait())
    try:
        while not reading.done() and not stop.is_set():
            await asyncio.wait({reading, stopping}, timeout=REDRAW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if answer.pieces != drawn:
                drawn = answer.pieces
                yield
    finally:
        await _end(reading, stopping)
    answer.end(stopped=stop.is_set())
    yield


async def _read(api: Api, body: Mapping[str, Any], answer: Answer, key: str | None) -> None:
    try:
        async for event in api.chat(body, key):
            answer.read(event)
    except LsvError as error:
        answer.message.error = error.message


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks still running and wait until their connections are closed; reraises a task's failure."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


def _extend(calls: list[ToolCall], delta: Mapping[str, Any]) -> None:
    """Add a piece of a tool call: the name comes first, the arguments bit by bit."""
    index, function = delta.get("index") or 0, delta.get("function") or {}
    if index >= len(calls):
        calls.append(ToolCall())
    call = calls[min(index, len(calls) - 1)]
    call.id = call.id or delta.get("id") or ""
    call.name += function.get("name") or ""
    call.arguments += function.get("arguments") or ""


def duration(seconds: float) -> str:
    """Seconds as they are read, "340 ms" or "3.2 s"."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
