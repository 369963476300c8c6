"""``lsv chat`` and ``lsv complete``: talk to a running server from the terminal."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from lsv.cli.address import API, server_address
from lsv.cli.context import CommandContext
from lsv.cli.conversation import Conversation, Message, choose_question, converse
from lsv.settings import Setting, Settings
from lsv.settings.neutral import neutral
from lsv_bench.openai_api import ApiClient, quieten

CLIENT_SETTINGS = (
    API,
    Setting(name="model_name", help="served name to ask (default: the server's first)", scope="all"),
    Setting(name="api_key", help="key of the server", env=("OPENAI_API_KEY", "VLLM_API_KEY"), scope="all"),
    Setting(name="max_tokens", type="int", help="longest answer in tokens", scope="all"),
    Setting(name="temperature", type="float", help="0 is greedy", scope="all"),
    Setting(
        name="quick",
        aliases=("prompt",),
        short=("-Q", "-p"),
        scope="all",
        help="send this message, print the answer and exit, like a plain argument",
    ),
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
    settings = context.settings(arguments, scope="client", extra=CHAT_SETTINGS, positional=1, usage="[QUESTION]")
    question = choose_question(settings["quick"], settings.positional, "--quick")
    client, model = _connect(settings)

    def answer(messages: list[Message]) -> Generator[str]:
        return _chat(client, {"model": model, "messages": messages, **_sampling(settings)})

    return _converse(Conversation(answer, system=settings["system_prompt"]), question)


def run_complete(arguments: list[str], context: CommandContext) -> int:
    """Complete: every line is a prompt of its own."""
    settings = context.settings(arguments, scope="client", extra=COMPLETE_SETTINGS, positional=1, usage="[TEXT]")
    question = choose_question(settings["quick"], settings.positional, "--quick")
    client, model = _connect(settings)

    def answer(messages: list[Message]) -> Generator[str]:
        body = {"model": model, "prompt": messages[-1]["content"], **_sampling(settings)}
        for event in client.stream("completions", body):
            for choice in event.get("choices", ()):
                yield choice["text"]

    return _converse(Conversation(answer, turns=False), question)


def _converse(conversation: Conversation, question: str | None) -> int:
    """Answer one question, or questions until the input ends. Returns the exit code."""
    if question is None:
        return converse(conversation)
    return 0 if conversation.ask(question) else 130


def _connect(settings: Settings) -> tuple[ApiClient, str]:
    quieten()
    client = ApiClient(f"{server_address(settings['api'])}/v1", settings["api_key"])
    return client, settings["model_name"] or client.models()[0]


def _sampling(settings: Settings) -> dict[str, Any]:
    given = {name: settings[name] for name in ("max_tokens", "temperature")}
    return {name: value for name, value in given.items() if value is not None}


def _chat(client: ApiClient, body: Mapping[str, Any]) -> Generator[str]:
    """Yield the pieces of an answer's text, which is part of the conversation. Other parts are only printed."""
    aside = _Aside()
    with closing(client.stream("chat/completions", body)) as events:
        for event in events:
            for choice in event.get("choices", ()):
                delta = choice.get("delta") or {}
                aside.think(delta.get("reasoning_content") or delta.get("reasoning") or "")
                for call in delta.get("tool_calls") or ():
                    aside.call(call.get("function") or {})
                if piece := delta.get("content"):
                    aside.end()
                    yield piece
    aside.end()


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
