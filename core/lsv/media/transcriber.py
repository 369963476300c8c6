"""The seam to families that write down what is said: their prompts, languages and time marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from lsv.request.params import TokenRules

Task = Literal["transcribe", "translate"]


class Span(msgspec.Struct, frozen=True):
    """Tokens of text, and when they are said: seconds from the beginning of the prompt's sound."""

    start: float
    stop: float
    ids: tuple[int, ...]


class Transcriber(Protocol):
    """Made by ``ProcessorOffer.transcribe``, a ``(folder, config) -> Transcriber``, where prompts are made; light.

    ``seconds`` is the longest sound of one prompt, ``languages`` the English names of those it knows by code.
    """

    seconds: float
    languages: Mapping[str, str]

    def prompt(self, task: Task, language: str, *, timed: bool, before: Sequence[int] = ()) -> tuple[int, ...]:
        """What the answer follows; ``before`` are tokens of text said earlier, ``timed`` asks for time marks.

        Raises ``BadRequest`` for a task or a language that the model does not know.
        """
        ...

    def rules(self, *, timed: bool) -> TokenRules:
        """What the answer keeps to."""
        ...

    def ask_language(self) -> tuple[tuple[int, ...], Mapping[int, str]]:
        """A prompt whose next token is a language, and the codes by token; asked where there are several."""
        ...

    def ask_silence(self) -> tuple[tuple[int, ...], int] | None:
        """A prompt, and the token that follows it as likely as nothing is said; None where there is none."""
        ...

    def spans(self, ids: Sequence[int], seconds: float) -> tuple[Span, ...]:
        """An answer cut at its time marks, if it has any; a sound of ``seconds`` bounds the last one."""
        ...
