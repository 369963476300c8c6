"""A call as tags: ``<function=f><parameter=a>1</parameter></function>`` and its like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lsv_parsers.source import Marks, Reading, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.tools.value_kinds import Kind, kind_of
from lsv_parsers.values import Show, python_as_json, quoted

MAX_NAME = 256
Key = tuple[str, Kind | None]
_NOTHING: Mapping[str, Any] = {}
_LITERALS = ("{", "[", "(", "True", "False", "None")
"""First characters of values that may be Python literals."""


def _plain_key(text: str) -> Key:
    return text.strip(), None


@dataclass(frozen=True)
class TaggedCall:
    """The tags of a call. Values are text if the tool's schema says so, else JSON if they are valid JSON.

    Models omit closing tags. So a value also ends at the next key, at the end of the call or at one of ``outer``, and a
    call at the next call or at one of ``outer``.
    """

    name_ends: tuple[str, ...]
    key_begin: str
    key_end: str
    value_end: str
    close: str
    name_begin: str = ""
    value_begin: str = ""
    lines: bool = False
    """Whether values stand on lines of their own."""
    outer: tuple[str, ...] = ()
    """Marks after all calls."""
    name: Callable[[str], str] = str.strip
    """The function's name, from the text up to one of ``name_ends``."""
    key: Callable[[str], Key] = _plain_key
    """A key, and the kind of its value if the tag says so, from the text up to ``key_end``."""
    types: tuple[str, str] | None = None
    """Marks around an optional type between key and value."""
    verbatim: tuple[str, str] | None = None
    """Optional marks around a text, inside which other marks are text."""

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        if self.name_begin and not (yield from source.comes(self.name_begin)):
            return False
        found = yield from source.head(marks_of(*self.name_ends), MAX_NAME)
        if found is None or not call.may_be(name := self.name(found[0])):
            return False
        if found[1] not in (self.key_begin, self.close):
            source.take(len(found[1]))
        return (yield from self._members(call, name))

    def _members(self, call: Call, name: str) -> Reading[bool]:
        source, schema = call.source, call.tools.get(name, _NOTHING)
        following = (*self.outer, self.name_begin) if self.name_begin else self.outer
        while True:
            yield from source.skip()
            if (yield from source.comes(self.close)) or (yield from source.stands(following)):
                call.open(name)
                call.arguments("}")
                return True
            if not (yield from source.comes(self.key_begin)):
                return False
            found = yield from source.head(marks_of(self.key_end), MAX_NAME)
            if found is None:
                return False
            source.take(len(found[1]))
            key, kind = self.key(found[0])
            if self.value_begin:
                between = yield from source.head(marks_of(self.value_begin), MAX_NAME)
                if between is None or not self._may_stand_between(between[0].strip()):
                    return False
                source.take(len(self.value_begin))
                kind = "text" if "string" in between[0] else kind
            comma = ", " if call.begun else ""
            call.open(name)
            call.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            if not (yield from self._value(call, kind or kind_of(schema, key))):
                return False

    def _may_stand_between(self, text: str) -> bool:
        return not text or (self.types is not None and text.startswith(self.types[0]) and text.endswith(self.types[1]))

    def _value(self, call: Call, kind: Kind) -> Reading[bool]:
        source = call.source
        if self.lines:
            yield from source.comes("\n")
        lines = _Lines(self.lines)
        verbatim = self.verbatim is not None and (yield from source.comes(self.verbatim[0]))
        if kind == "text" or verbatim:
            call.arguments('"')
            if not (yield from self._show_value(call, lambda text: call.arguments(quoted(lines(text))), verbatim)):
                return False
            call.arguments('"')
            return True
        pieces: list[str] = []
        if not (yield from self._show_value(call, lambda text: pieces.append(lines(text)))):
            return False
        call.arguments(as_json("".join(pieces), kind))
        return True

    def _show_value(self, call: Call, show: Show, verbatim: bool = False) -> Reading[bool]:
        """Show a value up to its end and read its closing tag; returns False if the answer ends before."""
        if verbatim and self.verbatim is not None:
            if not (yield from call.source.until(marks_of(self.verbatim[1]), show)):
                return False
            show = _forget
        mark = yield from call.source.until(self._value_ends, show, reads=False)
        if mark == self.value_end:
            call.source.take(len(mark))
        return bool(mark)

    @property
    def _value_ends(self) -> Marks:
        return marks_of(self.value_end, self.key_begin, self.close, *self.outer)


class _Lines:
    """Leaves out a line break at the end of a value, which comes in pieces."""

    def __init__(self, trims: bool) -> None:
        self._trims = trims
        self._held = ""

    def __call__(self, text: str) -> str:
        if not self._trims:
            return text
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        return text[: len(text) - len(self._held)]


def as_json(text: str, kind: Kind) -> str:
    """A value as JSON: its value if it is JSON or a Python literal, else the text itself."""
    shown = text.strip()
    if kind == "optional text":
        return "null" if shown in ("null", "None") else f'"{quoted(text)}"'
    try:
        json.loads(shown, parse_constant=_refuse, parse_int=_keep)
    except (ValueError, RecursionError):
        literal = python_as_json(shown) if shown.startswith(_LITERALS) else None
        return literal or f'"{quoted(text)}"'
    return shown


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _keep(digits: str) -> float:
    """Integers stay as they are written: converting long ones would take long."""
    return 0.0


def _forget(text: str) -> None:
    """White space between a text and its closing tag."""
