"""Thinking: a block at the beginning of an answer, between two marks, of which a template may write the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lsv.request.thinking import Thinking
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Marks, Reading, Source, marks_of
from lsv_parsers.tools.openers import OPENERS, holds_call


@dataclass(frozen=True)
class ThinkingFormat:
    """How a family thinks. What the prompt's end says, by one of the marks, counts more than ``always``."""

    begins: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    always: bool = False
    """Whether an answer begins with thinking though nothing says so."""
    silent: tuple[str, ...] = ()
    """Marks around the answer that follows. They are removed together with adjacent white space."""

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: self.read(source, parts, form))

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """How an answer thinks behind this prompt; None where the prompt has ended the thoughts."""
        thinks = self._expected(prompt_end)
        if thinks is False:
            return None
        return Thinking(begins=self.begins, ends=self.ends, open=thinks is True or self.always)

    def read(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        thinks = self._expected(form.prompt_end)
        source.record()
        yield from source.skip()
        opened = False
        for begin in self.begins:
            opened = opened or (yield from source.comes(begin))
        before = source.recorded()
        if opened or (thinks if thinks is not None else self.always):
            yield from self._think(source, parts, form)
            yield from self._skip_ends(source, parts)
        elif thinks is False:
            yield from self._skip_ends(source, parts, before)
        else:
            parts.text(before)
        yield from self._answer(source, parts, form)

    def _answer(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        """Show the rest. If a budget has ended the thoughts, the model may end them once more."""
        ends = self.ends if form.bounded else ()
        while mark := (yield from source.until(marks_of(*self.silent, *ends, *form.hidden), parts.text)):
            if mark in ends:
                ends = ()
            if mark not in form.hidden:
                parts.border()

    def _expected(self, prompt_end: str) -> bool | None:
        end = prompt_end.rstrip()
        if end.endswith(self.begins):
            return True
        return False if end.endswith(self.ends) else None

    def _think(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        openers = OPENERS if form.tools else ()
        marks = marks_of(*self.ends, *openers, *form.hidden)
        show = Trimmed(parts)
        parts.thinking = True
        while mark := (yield from source.until(marks, show)):
            if mark in self.ends:
                break
            if mark in openers:
                yield from self._drafted(mark, source, parts, form, show)
                return
        parts.thinking = False
        parts.border()

    def _drafted(
        self, mark: str, source: Source, parts: Parts, form: AnswerForm, show: Callable[[str], None]
    ) -> Reading[None]:
        """Read thoughts from the mark of a call on.

        If the thoughts end later, the call was a draft. If the answer ends first, a call of an offered tool is real.
        """
        pieces = [mark]
        ended = yield from source.until(marks_of(*self.ends), pieces.append)
        rest = "".join(pieces)
        is_call = not ended and holds_call(rest, form)
        if not is_call:
            for hidden in form.hidden:
                rest = rest.replace(hidden, "")
            show(rest)
        parts.thinking = False
        parts.border()
        if is_call:
            parts.text(rest)

    def _skip_ends(self, source: Source, parts: Parts, before: str = "") -> Reading[None]:
        """Skip marks that end thoughts which have already ended. Without such a mark, ``before`` is text."""
        while True:
            source.record(before)
            yield from source.skip()
            for end in self.ends:
                if (yield from source.comes(end)):
                    break
            else:
                parts.text(source.recorded())
                return
            source.recorded()
            parts.border()
            before = ""


def read_thoughts(source: Source, parts: Parts, ends: Sequence[str], marks: Marks) -> Reading[None]:
    """Read thoughts up to one of ``ends``, which are also in ``marks``; other marks are removed."""
    show = Trimmed(parts)
    parts.thinking = True
    while mark := (yield from source.until(marks, show)):
        if mark in ends:
            break
    parts.thinking = False
    parts.border()


class Trimmed:
    """Shows thoughts without the white space around them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._begun = False
        self._held: list[str] = []

    def __call__(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip()
        shown = text.rstrip()
        if shown:
            self._begun = True
            self._parts.thought("".join(self._held) + shown)
            self._held.clear()
        if self._begun and len(shown) < len(text):
            self._held.append(text[len(shown) :])


deepseek_r1 = ThinkingFormat(always=True)
think = ThinkingFormat()
granite = ThinkingFormat(
    ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
)
hunyuan_a13b = ThinkingFormat(silent=("<answer>", "</answer>"))
granite_response = ThinkingFormat(silent=("<response>", "</response>"))
mistral = ThinkingFormat(("[THINK]",), ("[/THINK]",))
seed_oss = ThinkingFormat(("<seed:think>",), ("</seed:think>",))
gemma4 = ThinkingFormat(("<|channel>thought",), ("<channel|>",))
cohere_command = ThinkingFormat(
    ("<|START_THINKING|>",), ("<|END_THINKING|>",),
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)  # fmt: skip
apertus = ThinkingFormat(("<|inner_prefix|>",), ("<|inner_suffix|>",))
hy_v3 = ThinkingFormat(("<think:opensource>",), ("</think:opensource>",))
minimax_m3 = ThinkingFormat(("<mm:think>",), ("</mm:think>",))
solar_open = ThinkingFormat(("<|think|>",), ("<|end|>",), silent=("<|begin|>assistant", "<|content|>"))
kimi_k3 = ThinkingFormat(
    ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",),
    silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
)  # fmt: skip
plamo3 = ThinkingFormat(("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",))
apriel = ThinkingFormat(
    ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), silent=("[END FINAL RESPONSE]",)
)  # fmt: skip
