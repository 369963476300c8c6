"""The questions of an evaluation: JSON objects, a line each, with the answers that count as right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.datasets import Conversation

Form = TypeVar("Form")
_LINES = {"questions": "question", "gsm8k": "problem", "shots_from": "example"}
"""What a line is called, by the option that names its file."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and what is right: ``answers`` to be generated, or ``correct`` ones of ``choices``, by index.

    ``place`` says where it stands; ``max_tokens`` None leaves the length of the answer to the evaluation.
    """

    place: str
    prompt: str | Conversation
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    correct: tuple[int, ...] = ()
    category: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A question as a file has it; other fields are ignored."""

    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    answer: str | int | float | None = None
    answers: tuple[str | int | float, ...] | None = None
    choices: tuple[str, ...] = ()
    category: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None


def read_questions(path: str) -> list[Question]:
    """The questions of a JSONL file. Empty lines are skipped.

    Raises ``ConfigError`` naming the file, and the line that is wrong.
    """
    return [_make_question(place, entry) for place, entry in read_entries(path, "questions", _Line)]


def read_entries(path: str, what: str, form: type[Form]) -> list[tuple[str, Form]]:
    """The objects of a JSONL file, each with its place; fields that ``form`` lacks are ignored, empty lines skipped.

    Raises ``ConfigError`` naming the file and the line that is wrong; ``what`` is the option at fault.
    """
    lines = enumerate(read_text(path, what).splitlines(), 1)
    found = [(f"{path}:{n}", _decode(f"{path}:{n}", line, form, what)) for n, line in lines if line.strip()]
    if not found:
        raise ConfigError(f"{what} {path} can't be used: it holds no line", param=what)
    return found


def make_questions(entries: Iterable[Mapping[str, Any]], name: str) -> list[Question]:
    """Questions from objects such as a file's lines hold. Raises ``ConfigError`` naming the one that is wrong."""
    places = ((f"{name}:{number}", msgspec.json.encode(entry)) for number, entry in enumerate(entries, 1))
    return [_make_question(place, _decode(place, line, _Line, "questions")) for place, line in places]


def read_text(path: str, what: str) -> str:
    """A file's text. Raises ``ConfigError`` where there is none, or none in UTF-8; ``what`` is the option at fault."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{what} {path} can't be read: {cause}", param=what) from None


def digest(things: Sequence[Any] | str) -> str:
    """Sixteen hex digits that name a text or questions, so that results are only compared over the same ones."""
    data = things.encode() if isinstance(things, str) else b"\n".join(map(_content, things))
    return hashlib.sha256(data).hexdigest()[:16]


def _content(question: Question) -> bytes:
    """All of a question but where it stood."""
    return msgspec.json.encode(msgspec.structs.replace(question, place=""), order="sorted")


def _decode(place: str, line: str | bytes, form: type[Form], what: str) -> Form:
    try:
        return msgspec.json.decode(line, type=form)
    except msgspec.DecodeError as cause:  # includes fields of a wrong type
        raise refuse_line(place, str(cause), what) from None


def _make_question(place: str, entry: _Line) -> Question:
    prompt = _prompt(place, entry)
    answers = _answers(place, entry)
    if entry.max_tokens is not None and entry.max_tokens < 1:
        raise refuse_line(place, f"max_tokens must be at least 1, got {entry.max_tokens}")
    if entry.choices and (len(entry.choices) < 2 or not all(entry.choices)):
        raise refuse_line(place, "choices must be two texts or more, none of them empty")
    return Question(
        place=place,
        prompt=prompt,
        answers=() if entry.choices else tuple(map(str, answers)),
        choices=entry.choices,
        correct=tuple(_choice(place, answer, entry.choices) for answer in answers) if entry.choices else (),
        category=entry.category,
        stop=entry.stop,
        max_tokens=entry.max_tokens,
    )


def _prompt(place: str, entry: _Line) -> str | Conversation:
    if (entry.prompt is None) == (entry.messages is None):
        raise refuse_line(place, "it must have either prompt or messages")
    if entry.messages is None:
        if not entry.prompt:
            raise refuse_line(place, "prompt must not be empty")
        return entry.prompt
    if not entry.messages or not all(isinstance(m.get("role"), str) and "content" in m for m in entry.messages):
        raise refuse_line(place, 'messages must be a list of {"role": …, "content": …}')
    return Conversation(entry.messages)


def _answers(place: str, entry: _Line) -> tuple[str | int | float, ...]:
    given = entry.answers if entry.answer is None else (entry.answer,)
    if not given or (entry.answer is not None and entry.answers is not None):
        raise refuse_line(place, "it must have either an answer or a list of answers")
    return given


def _choice(place: str, answer: str | float, choices: Sequence[str]) -> int:
    """The index of a choice that is given by its index, from 0, or by its text."""
    if isinstance(answer, int) and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    raise refuse_line(place, f"the answer must be one of the choices or its index from 0, got {answer!r}")


def refuse_line(place: str, why: str, what: str = "questions") -> ConfigError:
    return ConfigError(f"{_LINES.get(what, what)} {place} can't be used: {why}", param=what)
