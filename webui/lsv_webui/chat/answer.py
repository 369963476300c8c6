"""One answer as it streams in: its text so far, its speed, and why it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from lsv.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat.conversation import Message

REDRAW_SECONDS = 0.05
"""Tokens that arrive faster than this are drawn together."""

MEASURABLE_SECONDS = 0.1
"""Shorter answers give no speed: this process may have been busy for as long."""


class Answer:
    """Reads the events of a stream into a message."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._began = time.perf_counter()
        self._first: float | None = None
        self._last = self._began
        self._tokens = 0
        self._cut = ""

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in one event: text, the finish reason, or the usage."""
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                self._last = time.perf_counter()
                self._first = self._first or self._last
                self.message.text += text
            if choice.get("finish_reason") == "length":
                self._cut = "cut off at the length limit"
        if usage := event.get("usage"):
            self._tokens = usage["completion_tokens"]

    def end(self, *, stopped: bool = False) -> None:
        """Write the figures shown below the answer."""
        found = " · ".join(filter(None, (*self._figures(), "stopped" if stopped else self._cut)))
        self.message.note = found or ("" if self.message.error else "an empty answer")

    def _figures(self) -> tuple[str, ...]:
        if self._first is None:
            return ()
        ttft = f"first token {_duration(self._first - self._began)}"
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
    answer, drawn = Answer(message), ""
    reading = asyncio.create_task(_read(api, body, answer, key))
    stopping = asyncio.create_task(stop.wait())
    try:
        while not reading.done() and not stop.is_set():
            await asyncio.wait({reading, stopping}, timeout=REDRAW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if message.text != drawn:
                drawn = message.text
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


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
