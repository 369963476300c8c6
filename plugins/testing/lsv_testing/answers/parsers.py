"""What every parser of answers must keep: the same parts however the text was cut, and no exception."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from lsv.text.answer_parser import AnswerForm, AnswerParser, CallArguments, CallBegin, Part, Text, Thought


class FoundCall(msgspec.Struct):
    """A call of an answer: its function, its id where the model named one, and its arguments."""

    name: str
    id: str | None
    arguments: str


class Found(msgspec.Struct):
    """What a parser has made of an answer."""

    text: str = ""
    thoughts: str = ""
    calls: list[FoundCall] = []

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Found:
        found = cls(calls=[])
        for part in parts:
            if isinstance(part, Text):
                found.text += part.text
            elif isinstance(part, Thought):
                found.thoughts += part.text
            elif isinstance(part, CallBegin):
                found.calls.append(FoundCall(part.name, part.id, ""))
            elif isinstance(part, CallArguments):
                found.calls[-1].arguments += part.text
        return found


def parse(make: Callable[[AnswerForm], AnswerParser], answer: str, form: AnswerForm, cuts: Sequence[int] = ()) -> Found:
    """What a parser makes of an answer that comes in pieces, cut at ``cuts``."""
    parser = make(form)
    parts: list[Part] = []
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        parts += parser.push(answer[start:end])
    return Found.of([*parts, *parser.end()])


def check_parser(
    make: Callable[[AnswerForm], AnswerParser], answer: str, form: AnswerForm, *, seed: int = 0, trials: int = 8
) -> Found:
    """What a parser makes of an answer as a whole. It must make the same of it cut in two at every place, cut into
    single characters, and cut at random.
    """
    whole = parse(make, answer, form)
    drawn = random.Random(seed)
    places = range(1, len(answer))
    several = [sorted(drawn.sample(places, min(len(places), drawn.randint(2, 9)))) for _ in range(trials)]
    for cuts in ([], [0], *([place] for place in places), [*places], *several):
        found = parse(make, answer, form, cuts)
        assert found == whole, f"{answer!r} cut at {cuts}: {found} is not {whole}"
    return whole
