"""Thinking: a block at the beginning of an answer, between two marks, of which a template may write the first."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.request.thinking import Thinking
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Reading, Source, marks_of


@dataclass(frozen=True)
class ThinkingFormat:
    """How a family thinks. What the prompt's end says, by one of the marks, counts more than ``always``."""

    begins: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    always: bool = False
    """Whether an answer begins with thinking though nothing says so."""
    silent: tuple[str, ...] = ()
    """Marks around the answer that follows, which are left out."""

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
        else:
            parts.text(before)
        while (yield from source.until(marks_of(*self.silent, *form.hidden), parts.text)):
            pass

    def _expected(self, prompt_end: str) -> bool | None:
        end = prompt_end.rstrip()
        if end.endswith(self.begins):
            return True
        return False if end.endswith(self.ends) else None

    def _think(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        marks = marks_of(*self.ends, *form.hidden)
        show = Trimmed(parts)
        parts.thinking = True
        while mark := (yield from source.until(marks, show)):
            if mark in self.ends:
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
mistral = ThinkingFormat(("[THINK]",), ("[/THINK]",))
seed_oss = ThinkingFormat(("<seed:think>",), ("</seed:think>",))
