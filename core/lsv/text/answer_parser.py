"""The seam to parsers of answers: text in as it comes, and out come texts, thoughts and calls of tools.

Parsers are offered by plugins (``lsv_tool_parsers``, ``lsv_reasoning_parsers``) and made once for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from lsv.request.thinking import Thinking


class Text(msgspec.Struct, frozen=True):
    """What the reader of the answer is to see."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """What the model thinks before it answers."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A call of a tool begins; the arguments that follow, up to the next ``CallBegin``, are its own."""

    name: str
    """The function."""

    id: str | None = None
    """The call's id, where the model names one."""


class CallArguments(msgspec.Struct, frozen=True):
    """The next piece of a call's arguments; all pieces together are a JSON object, unless the answer was cut off or
    went wrong inside them."""

    text: str


Part = Text | Thought | CallBegin | CallArguments
"""What an answer is made of, in the order in which the model wrote it."""


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a parser is told about the answer it will read."""

    tools: Mapping[str, Mapping[str, Any]] = {}
    """Names of the functions that may be called, with the JSON schemas of their arguments."""

    hidden: Sequence[str] = ()
    """Special tokens that are not shown to the reader of the answer."""

    prompt_end: str = ""
    """The end of the prompt: templates may have opened or closed the thinking there."""

    bounded: bool = False
    """Whether a budget may end the thoughts before the model does."""


class AnswerParser(Protocol):
    """Reads one answer. The parts of all its calls, joined, do not depend on how the text was cut.

    It never raises for what a model wrote: text in no known form is ``Text``.
    """

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside of thoughts."""
        ...

    def push(self, text: str) -> Sequence[Part]:
        """What is certain once ``text`` is known."""
        ...

    def end(self) -> Sequence[Part]:
        """What was held back, at the end of the answer."""
        ...


@runtime_checkable
class KnowsThoughts(Protocol):
    """What a parser of thoughts is made by may have this, too: forms that hold after the thoughts, and budgets of
    thoughts, need it. Without it, a form holds from the first token on.
    """

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """How an answer thinks behind a prompt with this end; None where it does not."""
        ...


class Spelling(Protocol):
    """How a grammar in Lark writes texts and schemas for one tokenizer."""

    def text(self, text: str) -> list[str]:
        """Strings, and special tokens by their numbers."""
        ...

    def plain(self, text: str) -> str:
        """One string, whatever it says."""
        ...

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that a schema allows."""
        ...


class CallGrammar(Protocol):
    """What holds a model to a form of calls; grammars are written in Lark, as llguidance reads it."""

    @property
    def open(self) -> str:
        """What begins calls, and stands nowhere else in an answer; empty where nothing does."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether ``open`` and the rules may come again, after white space."""
        ...

    def rules(
        self, functions: Mapping[str, Mapping[str, Any]], spelling: Spelling, *, many: bool
    ) -> Sequence[str] | None:
        """The rule ``calls`` of what follows ``open``, and those that it needs: one call of one of ``functions``, or
        also more if there may be ``many``. None where this form can't hold arguments to one of the schemas.
        """
        ...


class ModelParser(msgspec.Struct, frozen=True):
    """A parser for one model: a plugin's own, or one that is derived from the model's chat template."""

    make: Callable[[AnswerForm], AnswerParser]
    marks: tuple[str, ...]
    """What it looks for, as in an offer of a parser."""
    grammar: CallGrammar | None = None
    """What holds the model to calls in the form that it reads, where it is derived."""
