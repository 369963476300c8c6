"""``lsv chat`` and ``lsv complete``: talk to a running server from the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from lsv.cli.context import CommandContext
from lsv.settings import Setting, Settings
from lsv_bench.openai_api import ApiClient

CLIENT_SETTINGS = (
    Setting(name="url", default="http://localhost:8000/v1", help="address of the server", scope="all"),
    Setting(name="model_name", help="served name to ask (default: the server's first)", scope="all"),
    Setting(name="api_key", help="key of the server", env=("OPENAI_API_KEY", "VLLM_API_KEY"), scope="all"),
    Setting(name="max_tokens", type="int", help="longest answer in tokens", scope="all"),
    Setting(name="temperature", type="float", help="0 is greedy", scope="all"),
    Setting(name="system_prompt", help="system message of the conversation", scope="all"),
    Setting(name="quick", short=("-Q",), help="send this one message, print the answer and leave", scope="all"),
)


def run(arguments: list[str], context: CommandContext) -> int:
    """Chat: the conversation is kept until the input ends."""
    settings = context.settings(arguments, scope="client", extra=CLIENT_SETTINGS)
    client, model = _connect(settings)
    messages: list[dict[str, str]] = []
    if settings["system_prompt"]:
        messages.append({"role": "system", "content": settings["system_prompt"]})

    def answer(text: str) -> None:
        messages.append({"role": "user", "content": text})
        body = {"model": model, "messages": messages, **_sampling(settings)}
        messages.append({"role": "assistant", "content": _print(_chat_text(client, body))})

    return _converse(settings, answer)


def run_complete(arguments: list[str], context: CommandContext) -> int:
    """Complete: every line is a prompt of its own."""
    settings = context.settings(arguments, scope="client", extra=CLIENT_SETTINGS)
    client, model = _connect(settings)

    def answer(text: str) -> None:
        body = {"model": model, "prompt": text, **_sampling(settings)}
        _print(event["choices"][0]["text"] for event in client.stream("completions", body) if event.get("choices"))

    return _converse(settings, answer)


def _connect(settings: Settings) -> tuple[ApiClient, str]:
    client = ApiClient(settings["url"], settings["api_key"])
    return client, settings["model_name"] or client.models()[0]


def _sampling(settings: Settings) -> dict[str, Any]:
    given = {name: settings[name] for name in ("max_tokens", "temperature")}
    return {name: value for name, value in given.items() if value is not None}


def _chat_text(client: ApiClient, body: dict[str, Any]) -> Iterator[str]:
    for event in client.stream("chat/completions", body):
        for choice in event.get("choices", ()):
            yield choice["delta"].get("content") or ""


def _print(pieces: Iterator[str]) -> str:
    text = []
    for piece in pieces:
        print(piece, end="", flush=True)
        text.append(piece)
    print()
    return "".join(text)


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
