"""``lsv chat`` and ``lsv complete``: talk to a running server from the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from lsv.cli.address import API, server_address
from lsv.cli.context import CommandContext
from lsv.settings import Setting, Settings
from lsv.settings.neutral import neutral
from lsv_bench.openai_api import ApiClient, quieten

CLIENT_SETTINGS = (
    API,
    Setting(name="model_name", help="served name to ask (default: the server's first)", scope="all"),
    Setting(name="api_key", help="key of the server", env=("OPENAI_API_KEY", "VLLM_API_KEY"), scope="all"),
    Setting(name="max_tokens", type="int", help="longest answer in tokens", scope="all"),
    Setting(name="temperature", type="float", help="0 is greedy", scope="all"),
    Setting(name="quick", short=("-Q",), help="send this one message, print the answer and leave", scope="all"),
)
CHAT_SETTINGS = (
    *CLIENT_SETTINGS,
    Setting(name="system_prompt", help="system message of the conversation", scope="all"),
)
COMPLETE_SETTINGS = (
    *CLIENT_SETTINGS,
    neutral("system_prompt", "", instead="a prompt has no system message; put it before the text, or use lsv chat"),
)


def run(arguments: list[str], context: CommandContext) -> int:
    """Chat: the conversation is kept until the input ends."""
    settings = context.settings(arguments, scope="client", extra=CHAT_SETTINGS)
    client, model = _connect(settings)
    messages: list[dict[str, str]] = []
    if settings["system_prompt"]:
        messages.append({"role": "system", "content": settings["system_prompt"]})

    def answer(text: str) -> None:
        question = {"role": "user", "content": text}
        said = _chat(client, {"model": model, "messages": [*messages, question], **_sampling(settings)})
        if said:  # a question that was not answered in words is left out, as servers take turns alone
            messages.extend((question, {"role": "assistant", "content": said}))

    return _converse(settings, answer)


def run_complete(arguments: list[str], context: CommandContext) -> int:
    """Complete: every line is a prompt of its own."""
    settings = context.settings(arguments, scope="client", extra=COMPLETE_SETTINGS)
    client, model = _connect(settings)

    def answer(text: str) -> None:
        for event in client.stream("completions", {"model": model, "prompt": text, **_sampling(settings)}):
            for choice in event.get("choices", ()):
                print(choice["text"], end="", flush=True)
        print()

    return _converse(settings, answer)


def _connect(settings: Settings) -> tuple[ApiClient, str]:
    quieten()
    client = ApiClient(f"{server_address(settings['api'])}/v1", settings["api_key"])
    return client, settings["model_name"] or client.models()[0]


def _sampling(settings: Settings) -> dict[str, Any]:
    given = {name: settings[name] for name in ("max_tokens", "temperature")}
    return {name: value for name, value in given.items() if value is not None}


def _chat(client: ApiClient, body: Mapping[str, Any]) -> str:
    """Print an answer as it comes; returns its text, which alone is part of the conversation."""
    text, aside = "", _Aside()
    for event in client.stream("chat/completions", body):
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            aside.think(delta.get("reasoning_content") or delta.get("reasoning") or "")
            for call in delta.get("tool_calls") or ():
                aside.call(call.get("function") or {})
            if piece := delta.get("content"):
                aside.end()
                print(piece, end="", flush=True)
                text += piece
    aside.end()
    if text:
        print()
    return text


class _Aside:
    """What is no part of an answer, dim on standard error: what a model thinks, and the tools it asks for."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._open = False

    def think(self, piece: str) -> None:
        if piece:
            self._write(piece)

    def call(self, function: Mapping[str, Any]) -> None:
        """A piece of a tool call: the name comes first, the arguments bit by bit."""
        if name := function.get("name"):
            self.end()
            self._write(f"calls {name} ")
        self._write(function.get("arguments") or "")

    def end(self) -> None:
        """End its line, if it has begun one."""
        if self._open:
            self._console.print()
            self._open = False

    def _write(self, piece: str) -> None:
        self._console.print(piece, end="", style="dim")
        self._open = True


def _converse(settings: Settings, answer: Callable[[str], None]) -> int:
    """One message from ``--quick``, or line by line from the terminal or a pipe."""
    if settings["quick"]:
        answer(settings["quick"])
        return 0
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return 0
        if line.strip():
            answer(line)
