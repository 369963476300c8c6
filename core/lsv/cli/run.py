"""``lsv run``: answer in this process, without a server. One prompt, a pipe, or a conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lsv.cli.context import CommandContext
from lsv.request.params import SamplingParams
from lsv.settings import Setting

if TYPE_CHECKING:
    from lsv.llm import LLM

RUN_SETTINGS = (
    Setting(
        name="prompt", short=("-p",), help="answer this prompt and leave; without it the input is read", scope="all"
    ),
    Setting(name="max_tokens", type="int", default=512, help="longest answer in tokens", scope="all"),
    Setting(name="temperature", type="float", default=0.0, help="0 is greedy", scope="all"),
    Setting(
        name="raw", type="bool", default=False, help="continue the text as it is, without chat template", scope="all"
    ),
)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=RUN_SETTINGS)
    from lsv.llm import LLM

    params = SamplingParams(max_tokens=settings["max_tokens"], temperature=settings["temperature"])
    with LLM.from_settings(settings, context.plugins) as llm:
        if settings["prompt"] is not None:
            print(_answer(llm, [], settings["prompt"], params, raw=settings["raw"]))
            return 0
        if not sys.stdin.isatty():
            print(_answer(llm, [], sys.stdin.read(), params, raw=settings["raw"]))
            return 0
        return _chat(llm, params, raw=settings["raw"])


def _chat(llm: LLM, params: SamplingParams, *, raw: bool) -> int:
    history: list[dict[str, str]] = []
    while True:
        try:
            line = input("> ")
        except EOFError:
            return 0
        if line.strip():
            print(_answer(llm, history, line, params, raw=raw))


def _answer(llm: LLM, history: list[dict[str, str]], text: str, params: SamplingParams, *, raw: bool) -> str:
    """The answer to ``text``; in a chat both are appended to ``history``."""
    if raw or not llm.get_tokenizer().has_chat_template:
        return llm.generate(text, params, use_tqdm=False)[0].checked().outputs[0].text
    history.append({"role": "user", "content": text})
    reply = llm.chat(history, params, use_tqdm=False)[0].checked().outputs[0].text
    history.append({"role": "assistant", "content": reply})
    return reply
