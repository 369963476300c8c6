"""The seam to families that transcribe: their prompts, languages and timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

Task = Literal["transcribe", "translate"]


class Span(msgspec.Struct, frozen=True):
    """Tokens of text, and when they are spoken: seconds from the beginning of the prompt's audio."""

    start: float
    stop: float
    ids: tuple[int, ...]


class Transcriber(Protocol):
    """Made by ``ProcessorOffer.transcribe``, a ``(folder, config) -> Transcriber``, where prompts are made; light."""

    seconds: float
    """The longest audio of one prompt."""
    languages: Mapping[str, str]
    """English names of the languages it knows, by code."""

    def prompt(self, task: Task, language: str, *, timed: bool, before: Sequence[int] = ()) -> tuple[int, ...]:
        """The prompt of a transcription; ``before`` are tokens of the text before it, ``timed`` asks for timestamps.

        Raises ``BadRequest`` for a task or a language that the model does not know.
        """
        ...

    def logits_processors(self, *, timed: bool) -> Mapping[str, Any]:
        """The logits processors that hold the answer to the family's rules, as ``SamplingParams`` has them."""
        ...

    def ask_language(self) -> tuple[tuple[int, ...], Mapping[int, str]]:
        """A prompt whose next token is a language, and the codes by token; used where there are several."""
        ...

    def ask_silence(self) -> tuple[tuple[int, ...], int] | None:
        """A prompt, and the token whose probability after it is that of silence; None where there is none."""
        ...

    def spans(self, ids: Sequence[int], seconds: float) -> tuple[Span, ...]:
        """An answer split at its timestamps, if it has any; the last span ends at ``seconds``, where the audio does."""
        ...
