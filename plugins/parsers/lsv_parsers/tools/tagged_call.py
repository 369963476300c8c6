"""A call as tags: ``<function=f><parameter=a>1</parameter></function>`` and its like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lsv_parsers.source import Reading, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.values import quoted

MAX_NAME = 256
_NOTHING: Mapping[str, Any] = {}

Kind = Literal["text", "optional text", "any"]


@dataclass(frozen=True)
class TaggedCall:
    """The tags of a call. Values are text where the tool's schema says so, else JSON where they can be read as it."""

    name_ends: tuple[str, ...]
    key_begin: str
    key_end: str
    value_end: str
    close: str
    name_begin: str = ""
    value_begin: str = ""
    lines: bool = False
    """Whether values stand on lines of their own."""

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
        while True:
            yield from source.skip()
            if (yield from source.comes(self.close)):
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
            if not (
                yield from source.until(marks_of(self.value_end), lambda text: call.arguments(quoted(lines(text))))
            ):
                return False
            call.arguments('"')
            return True
        pieces: list[str] = []
        if not (yield from source.until(marks_of(self.value_end), lambda text: pieces.append(lines(text)))):
            return False
        call.arguments(as_json("".join(pieces), kind))
        return True


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


def kind_of(schema: Mapping[str, Any], key: str) -> Kind:
    """How the value of an argument is read, by the JSON schema of a function's arguments."""
    properties = schema.get("properties")
    types = _types(properties.get(key)) if isinstance(properties, dict) else frozenset()
    if types == {"string"}:
        return "text"
    return "optional text" if types == {"string", "null"} else "any"


def _types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema names; of choices, those of all together."""
    if not isinstance(schema, dict):
        return frozenset()
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        return frozenset().union(*(_types(choice) for choice in choices[:64] if choice is not schema))
    named = schema.get("type")
    return frozenset(name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str))


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
