"""Calls with unique names and values, which can be found in the output of a template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lsv.text.round_trip import Call, Case, Schemas, Write, Written, call_id
from lsv_parsers.derived.atoms import ID

_DECODER = json.JSONDecoder()
_SCHEMA = {
    "type": "object",
    "properties": {
        "a_city": {"type": "string", "description": "A city"},
        "b_days": {"type": "integer", "description": "How many days"},
        "c_note": {"type": "string", "description": "A note"},
    },
    "required": ["a_city", "b_days", "c_note"],
}
SCHEMAS: Schemas = {"probe_first": _SCHEMA, "probe_second": _SCHEMA}
FIRST: Call = ("probe_first", {"a_city": "valueOne", "b_days": 48613, "c_note": "valueTwo"})
SECOND: Call = ("probe_second", {"a_city": "valueThree", "b_days": 59724, "c_note": "valueFour"})
TEXT = "Some words before."
THOUGHT = "Some words within."
CASES: Mapping[str, Case] = {
    "one": Case((FIRST,)),
    "two": Case((FIRST, SECOND)),
    "text": Case(text=TEXT),
    "thought": Case(text=TEXT, thought=THOUGHT),
    "thought and call": Case((FIRST,), thought=THOUGHT),
}


class Span(NamedTuple):
    """A place in an answer."""

    start: int
    end: int


class Located(NamedTuple):
    """The position of a call in an answer."""

    name: Span
    values: tuple[tuple[Span, Span], ...]
    """Keys and values if arguments are written one by one; empty if they are a JSON object."""
    arguments: Span
    """The JSON object or string, or all keys and values."""
    encoded: bool = False


def write_probes(write: Write) -> dict[str, Written]:
    """The answers that the template writes, by case, with ``ID`` instead of the calls' ids."""
    return {one.name: one._replace(answer=_hide_ids(one)) for one in write(CASES, SCHEMAS)}


def locate(answer: str, call: Call, start: int = 0) -> Located | None:
    """The position of ``call``, from ``start`` on; None if its name and arguments are not found."""
    name, given = call
    found = _find_object(answer, given, start)
    if found is not None:
        span, encoded = found
        at = answer.rfind(name, start, span.start)
        at = at if at >= 0 else answer.find(name, span.end)
        return None if at < 0 else Located(Span(at, at + len(name)), (), span, encoded)
    values = _find_values(answer, given, start)
    if values is None:
        return None
    at = answer.rfind(name, start, values[0][0].start)
    whole = Span(values[0][0].start, values[-1][1].end)
    return None if at < 0 else Located(Span(at, at + len(name)), values, whole)


def objects_from(answer: str, start: int, end: int) -> Iterator[tuple[Span, dict[str, Any]]]:
    """The JSON objects that begin from ``start`` on and before ``end``."""
    at = answer.find("{", start, end)
    while at >= 0:
        try:
            value, stop = _DECODER.raw_decode(answer, at)
        except ValueError:
            pass
        else:
            yield Span(at, stop), value
        at = answer.find("{", at + 1, end)


def _hide_ids(one: Written) -> str:
    answer = one.answer
    for number in range(1, len(one.case.calls) + 1):
        answer = answer.replace(call_id(number), ID)
    return answer


def _find_object(answer: str, given: Mapping[str, Any], start: int) -> tuple[Span, bool] | None:
    for at in range(start, len(answer)):
        if answer[at] not in '{"':
            continue
        try:
            value, stop = _DECODER.raw_decode(answer, at)
            if isinstance(value, str) and json.loads(value) == given:
                return Span(at, stop), True
        except ValueError:
            continue
        if value == given:
            return Span(at, stop), False
    return None


def _find_values(answer: str, given: Mapping[str, Any], start: int) -> tuple[tuple[Span, Span], ...] | None:
    found, at = list[tuple[Span, Span]](), start
    for key, value in given.items():
        spans = []
        for text in (key, str(value)):
            place = answer.find(text, at)
            if place < 0:
                return None
            at = place + len(text)
            spans.append(Span(place, at))
        found.append((spans[0], spans[1]))
    return tuple(found)
