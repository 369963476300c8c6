"""A call as tags: ``<function=f><parameter=a>1</parameter></function>`` and its like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lsv_parsers.source import Marks, Reading, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.tools.value_kinds import Kind, kind_of
from lsv_parsers.values import quoted

MAX_NAME = 256
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class TaggedCall:
    """The tags of a call. Values are text where the tool's schema says so, else JSON where they can be read as it.

    Models leave out closing tags: a value also ends where the next key, the end of the call or one of ``outer`` stands,
    and a call where the next one or one of ``outer`` does.
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

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        if self.name_begin and not (yield from source.comes(self.name_begin)):
            return False
        found = yield from source.head(marks_of(*self.name_ends), MAX_NAME)
        if found is None or not call.may_be(name := found[0].strip()):
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
                self._begin(call, name)
                call.arguments("}")
                return True
            if not (yield from source.comes(self.key_begin)):
                return False
            found = yield from source.head(marks_of(self.key_end), MAX_NAME)
            if found is None:
                return False
            source.take(len(found[1]))
            if self.value_begin:
                yield from source.skip()
                if not (yield from source.comes(self.value_begin)):
                    return False
            comma = ", " if call.begun else ""
            self._begin(call, name)
            key = found[0].strip()
            call.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            if not (yield from self._value(call, kind_of(schema, key))):
                return False

    @staticmethod
    def _begin(call: Call, name: str) -> None:
        if not call.begun:
            call.begin(name)
            call.arguments("{")

    def _value(self, call: Call, kind: Kind) -> Reading[bool]:
        source = call.source
        if self.lines:
            yield from source.comes("\n")
        lines = _Lines(self.lines)
        if kind == "text":
            call.arguments('"')
            if not (yield from self._show_value(call, lambda text: call.arguments(quoted(lines(text))))):
                return False
            call.arguments('"')
            return True
        pieces: list[str] = []
        if not (yield from self._show_value(call, lambda text: pieces.append(lines(text)))):
            return False
        call.arguments(as_json("".join(pieces), kind))
        return True

    def _show_value(self, call: Call, show: Callable[[str], None]) -> Reading[bool]:
        """Show a value up to its end, and read its closing tag; False where the answer ends before."""
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
    """A value as JSON: what it says, if it is JSON, and otherwise the text itself."""
    shown = text.strip()
    if kind == "optional text":
        return "null" if shown == "null" else f'"{quoted(text)}"'
    if shown in ("True", "False"):
        return shown.lower()
    try:
        json.loads(shown, parse_constant=_refuse, parse_int=_keep)
    except (ValueError, RecursionError):
        return f'"{quoted(text)}"'
    return shown


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _keep(digits: str) -> float:
    """Integers stay as they are written: converting long ones would take long."""
    return 0.0
