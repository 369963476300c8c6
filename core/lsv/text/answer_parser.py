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
"""A part of an answer. Parts come in the order in which the model wrote them."""


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a parser knows about the answer before reading it."""

    tools: Mapping[str, Mapping[str, Any]] = {}
    """Names of the functions that may be called, with the JSON schemas of their arguments."""

    hidden: Sequence[str] = ()
    """Special tokens that are removed from the answer."""

    prompt_end: str = ""
    """The end of the prompt: templates may have opened or closed the thinking there."""

    bounded: bool = False
    """Whether a token budget may end the thoughts."""


class AnswerParser(Protocol):
    """Reads one answer. The parts of all its calls, joined, do not depend on how the text was cut.

    It never raises for what a model wrote: text in no known form is ``Text``.
    """

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside thoughts."""
        ...

    def push(self, text: str) -> Sequence[Part]:
        """Read more text; returns the parts that are certain now."""
        ...

    def end(self) -> Sequence[Part]:
        """End the answer; returns the parts held back so far."""
        ...


@runtime_checkable
class KnowsThoughts(Protocol):
    """An optional interface of the factory of a parser of thoughts.

    Forms that apply after the thoughts need it, and so do budgets of thoughts. Without it, a form applies from the
    first token on.
    """

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """How an answer thinks after a prompt with this end; None if it does not think."""
        ...


class Spelling(Protocol):
    """Writes texts and schemas in a Lark grammar for one tokenizer."""

    def text(self, text: str) -> list[str]:
        """A text as strings, with special tokens by number."""
        ...

    def plain(self, text: str) -> str:
        """A text as one string, without special tokens."""
        ...

    def json(self, schema: Mapping[str, Any]) -> str:
        """A rule for JSON that matches a schema."""
        ...


class CallGrammar(Protocol):
    """A grammar that forces calls in one form. It is written in Lark, as llguidance reads it."""

    @property
    def open(self) -> str:
        """Text that begins calls and appears nowhere else in an answer; empty if there is none."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether ``open`` and the calls may repeat, after white space."""
        ...

    def rules(
        self, functions: Mapping[str, Mapping[str, Any]], spelling: Spelling, *, many: bool
    ) -> Sequence[str] | None:
        """The rule ``calls`` for the text after ``open``, and the rules that it needs.

        It allows one call of one of ``functions``, or several if ``many``. None if this form can't express arguments of
        one of the schemas.
        """
        ...


class ModelParser(msgspec.Struct, frozen=True):
    """A parser for one model: a plugin's own, or one derived from the model's chat template."""

    make: Callable[[AnswerForm], AnswerParser]
    marks: tuple[str, ...]
    """The texts that it looks for, as in an offer of a parser."""
    grammar: CallGrammar | None = None
    """The grammar of the calls that it reads, if the parser is derived."""
