"""``lsv run``: answer in this process, without a server. One prompt, a pipe, or a conversation."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from lsv.cli.context import CommandContext
from lsv.cli.conversation import NO_QUESTION, Answer, Conversation, Message, choose_question, converse
from lsv.cli.questions import is_interactive
from lsv.request.outputs import RequestOutput
from lsv.request.params import SamplingParams
from lsv.settings import Setting
from lsv_base.errors import ConfigError

if TYPE_CHECKING:
    from lsv_offline.llm import LLM

RUN_SETTINGS = (
    Setting(
        name="prompt", short=("-p",), scope="all",
        help="answer this question and exit, like the second plain argument; without either, read standard input",
    ),
    Setting(name="max_tokens", type="int", default=512, help="longest answer in tokens", scope="all"),
    Setting(name="temperature", type="float", default=0.0, help="0 is greedy", scope="all"),
    Setting(
        name="raw", type="bool", default=False, help="continue the text as it is, without chat template", scope="all"
    ),
)  # fmt: skip


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=RUN_SETTINGS, positional=1, usage="[MODEL] [QUESTION]")
    question = choose_question(settings["prompt"], settings.positional, "--prompt")
    if question is None and not is_interactive() and not sys.stdin.isatty():
        question = sys.stdin.read()  # before loading the model, which an empty question does not need
        if not question.strip():
            raise ConfigError(NO_QUESTION)
    from lsv_offline.llm import LLM

    params = SamplingParams(max_tokens=settings["max_tokens"], temperature=settings["temperature"])
    with LLM.from_settings(settings, context.plugins) as llm:
        raw = settings["raw"] or not llm.get_tokenizer().has_chat_template
        conversation = Conversation(answerer(llm, params, raw=raw), turns=not raw)
        if question is None:
            return converse(conversation)
        return 0 if conversation.ask(question) else 130


def answerer(llm: LLM, params: SamplingParams, *, raw: bool) -> Answer:
    """A function that answers conversations with this model. With ``raw`` it continues the last message's text."""
    numbers = itertools.count()

    def answer(messages: list[Message]) -> Generator[str]:
        prompt = messages[-1]["content"] if raw else llm.read_chat(messages)
        return _stream(llm, f"run-{next(numbers)}", prompt, params)

    return answer


def _stream(llm: LLM, name: str, prompt: Any, params: SamplingParams) -> Generator[str]:
    """Yield the text of an answer piece by piece. Raises the request's error, and ``KeyboardInterrupt``.

    Ctrl-C takes effect between steps, because an interrupted step would leave the engine in an inconsistent state.
    """
    engine, shown = llm.llm_engine, 0
    engine.add_request(name, prompt, params)
    try:
        with _noting_interrupts() as interrupts:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    assert isinstance(output, RequestOutput)
                    text = output.checked().outputs[0].text
                    yield text[shown:]
                    shown = len(text)
                if interrupts:
                    raise KeyboardInterrupt
    finally:
        engine.abort_request(name)


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Collect the first SIGINT; the second one raises ``KeyboardInterrupt``."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
