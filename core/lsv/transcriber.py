"""The seam to families that write down what is said: their prompts, languages and time marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Task = Literal["transcribe", "translate"]


class Span(msgspec.Struct, frozen=True):
    """Tokens of text, and when they are said: seconds from the beginning of the prompt's sound."""

    start: float
    stop: float
    ids: tuple[int, ...]


class Transcriber(Protocol):
    """Made by ``ProcessorOffer.transcribe``, a ``(folder, config) -> Transcriber``, where prompts are made; light.

    ``seconds`` is the longest sound of one prompt. ``languages`` are the names of those it knows by code; there are
    none where a model knows but one.
    """

    seconds: float
    languages: Mapping[str, str]

    def prompt(self, task: Task, language: str | None, *, timed: bool, before: Sequence[int] = ()) -> tuple[int, ...]:
        """What the answer follows; ``before`` are tokens of text said earlier, ``timed`` asks for time marks.

        Raises ``BadRequest`` for a task or a language that the model does not know.
        """
        ...

    def ask_language(self) -> tuple[tuple[int, ...], Mapping[int, str]]:
        """A prompt whose next token is a language, and the codes by token."""
        ...

    def spans(self, ids: Sequence[int], seconds: float) -> tuple[Span, ...]:
        """An answer cut at its time marks, if it has any; a sound of ``seconds`` bounds the last one."""
        ...
