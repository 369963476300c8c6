"""Derives the shape of a family's calls from how its chat template writes known calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from lsv.text.round_trip import Call, Write
from lsv_parsers.derived.atoms import common_prefix, common_suffix
from lsv_parsers.derived.probes import FIRST, SECOND, TEXT, Located, Span, locate, objects_from, write_probes
from lsv_parsers.derived.shape import CallShape, JsonArguments, ObjectKeys, WrittenArguments


class _Around(NamedTuple):
    """The texts around the calls of one answer."""

    before: str
    after: str
    middle: str | None
    """The text between two calls; None if the template writes only one."""


def derive_calls(write: Write) -> CallShape | None:
    """How the template writes calls; None if it writes none, or if their form is not understood."""
    written = write_probes(write)
    if "one" not in written:
        return None
    answer = written["one"].answer
    found = locate(answer, FIRST)
    if found is None:
        return None
    two = written["two"].answer if "two" in written else None
    text = written["text"].answer if "text" in written else None
    around = _cut_turn(_look_around(answer, found, two), text)
    shape = _derive_values(answer, found, around) if found.values else _derive_json(answer, found, around)
    if shape is None or FIRST[0] in f"{shape.open}{shape.begin}{shape.head_end}{shape.end}":
        return None  # the name appears more than once
    return shape if two is None else _number_heads(shape, two)


def _look_around(answer: str, found: Located, two: str | None) -> _Around:
    start, end = _bounds(found)
    middle = None if two is None else _between(two)
    return _Around(answer[:start], answer[end:], middle)


def _number_heads(shape: CallShape, two: str) -> CallShape:
    """The shape with ``INDEX`` for a number after the name, if the second call has another number there."""
    found = locate(two, SECOND)
    if found is None or not shape.name_first:
        return shape
    after = two[found.name.end : found.arguments.start]
    if isinstance(shape.arguments, WrittenArguments):
        after = after[: len(after) - len(shape.arguments.key_begin)]
    head_end, left, _ = common_prefix(shape.head_end, after)
    return replace(shape, head_end=head_end + left)


def _bounds(found: Located) -> Span:
    """From the name to the end of the arguments, or vice versa."""
    return Span(min(found.name.start, found.arguments.start), max(found.name.end, found.arguments.end))


def _between(two: str) -> str | None:
    first = locate(two, FIRST)
    second = None if first is None else locate(two, SECOND, _bounds(first).end)
    if first is None or second is None:
        return None
    return two[_bounds(first).end : _bounds(second).start]


def _cut_turn(around: _Around, text: str | None) -> _Around:
    """Remove the beginning and the end that plain answers have, too."""
    before, middle, after = around.before, around.middle, around.after
    if text is not None and TEXT in text:
        lead, _, tail = text.partition(TEXT)
        before = common_prefix(before, lead)[1]
        after = common_suffix(after, tail)[1]
    return _Around(before.lstrip(), after.rstrip(), middle)


def _derive_json(answer: str, found: Located, around: _Around) -> CallShape | None:
    name_first = found.name.end <= found.arguments.start
    first, second = (found.name, found.arguments) if name_first else (found.arguments, found.name)
    head_end = answer[first.end : second.start]
    keys = _derive_keys(answer, found, FIRST)
    if keys is None and (not name_first or found.encoded):
        return None
    arguments = JsonArguments(found.encoded)
    return _frame(around, head_end, arguments, keys=keys, name_first=name_first)


def _derive_keys(answer: str, found: Located, call: Call) -> ObjectKeys | None:
    """The keys of the outermost JSON object with only this call; None if there is none."""
    name, bounds = call[0], _bounds(found)
    for span, value in objects_from(answer, 0, bounds.start):
        keys = _read_keys(value, name, call[1]) if span.end >= bounds.end else None
        if keys is not None:
            return ObjectKeys(answer[span.start : bounds.start], answer[bounds.end : span.end], **keys)
    return None


def _read_keys(value: dict[str, Any], name: str, given: dict[str, Any], wrapper: str = "") -> dict[str, Any] | None:
    if value == {name: given}:
        return {}
    named = [key for key, one in value.items() if one == name]
    holding = [key for key, one in value.items() if one == given or (isinstance(one, str) and _is_json(one, given))]
    if named and holding:
        others = tuple(key for key in value if key not in (named[0], holding[0]))
        return {"name": named[0], "arguments": holding[0], "wrapper": wrapper, "others": others}
    if wrapper:
        return None
    for key, one in value.items():
        found = _read_keys(one, name, given, key) if isinstance(one, dict) else None
        if found:
            return found | {"others": (*found["others"], *(other for other in value if other != key))}
    return None


def _is_json(text: str, given: dict[str, Any]) -> bool:
    return any(value == given for span, value in objects_from(text, 0, 1) if span == (0, len(text)))


def _derive_values(answer: str, found: Located, around: _Around) -> CallShape | None:
    """The shape of arguments that are written one by one, from a text, a number and a text."""
    (key_a, value_a), (key_b, value_b), (key_c, value_c) = found.values
    opened, text_begin = answer[found.name.end : key_a.start], answer[key_a.end : value_a.start]
    after_text, value_begin = answer[value_a.end : key_b.start], answer[key_b.end : value_b.start]
    after_value = answer[value_b.end : key_c.start]
    if answer[key_c.end : value_c.start] != text_begin or not after_text.endswith(after_value):
        return None
    quote = after_text[: len(after_text) - len(after_value)]
    if quote and text_begin != value_begin + quote:
        return None
    key_begin, head_end, left = common_suffix(opened, after_value)
    after = _drop_quote(around.after, quote)
    middle = None if around.middle is None else _drop_quote(around.middle, quote)
    if after is None or (around.middle is not None and middle is None):
        return None
    value_end, between, after = common_prefix(left, after)
    if middle is not None:
        if not middle.startswith(value_end):
            return None
        middle = middle[len(value_end) :]
    arguments = WrittenArguments(key_begin, value_begin, text_begin, value_end, quote, between)
    return _frame(_Around(around.before, after, middle), head_end, arguments)


def _drop_quote(text: str, quote: str) -> str | None:
    return text[len(quote) :] if text.startswith(quote) else None


def _frame(
    around: _Around,
    head_end: str,
    arguments: JsonArguments | WrittenArguments,
    *,
    keys: ObjectKeys | None = None,
    name_first: bool = True,
) -> CallShape:
    """The shape. The text between two calls shows which marks belong to each call and which to all."""
    if around.middle is None:
        return CallShape(
            "", around.before, head_end, arguments, around.after, "", "", keys, name_first=name_first, repeats=False
        )
    begin, open, left = common_suffix(around.before, around.middle)
    end, close, between = common_prefix(around.after, left)
    return CallShape(open, begin, head_end, arguments, end, between, close, keys, name_first=name_first)
