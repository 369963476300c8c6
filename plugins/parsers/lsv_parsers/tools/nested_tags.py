"""``<invoke name="f"><a>1</a><b><item>x</item></b></invoke>``: keys are tags, and tags inside values are values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.tools.tagged_call import as_json
from lsv_parsers.tools.value_kinds import Kind, kind_of
from lsv_parsers.values import MAX_DEPTH

MAX_NAME = 256
_ITEM = "item"
"""The tag of list items."""
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class NestedTags:
    """Each tag follows ``mark``, which no value contains. Values are shown as a whole, because only their end shows
    their type.
    """

    mark: str

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        if not (yield from source.comes(f'{self.mark}<invoke name="')):
            return False
        found = yield from source.head(marks_of('">'), MAX_NAME)
        if found is None or not call.may_be(name := found[0]):
            return False
        source.take(len(found[1]))
        schema, comma = call.tools.get(name, _NOTHING), ""
        while True:
            yield from source.skip()
            if (yield from source.comes(f"{self.mark}</invoke>")):
                call.open(name)
                call.arguments("}")
                return True
            key = yield from self._open(source)
            if key is None:
                return False
            value = yield from self._value(source, key, kind_of(schema, key), 0)
            if value is None:
                return False
            call.open(name)
            call.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: {value}")
            comma = ", "

    def _open(self, source: Source) -> Reading[str | None]:
        """Read an opening tag; returns its name, or None if there is no tag."""
        if not (yield from source.comes(f"{self.mark}<")):
            return None
        found = yield from source.head(marks_of(">"), MAX_NAME)
        if found is None:
            return None
        source.take(len(found[1]))
        return found[0]

    def _value(self, source: Source, key: str, kind: Kind, depth: int) -> Reading[str | None]:
        """Read the value of ``key`` and its closing tag; returns it as JSON, or None if it has no end."""
        close, pieces = f"{self.mark}</{key}>", list[str]()
        if not (yield from source.until(marks_of(self.mark), pieces.append, reads=False)):
            return None
        if (yield from source.comes(close)):
            return as_json("".join(pieces), kind) if kind != "text" else json.dumps("".join(pieces), ensure_ascii=False)
        if depth == MAX_DEPTH:
            return None
        members: list[tuple[str, str]] = []
        while not (yield from source.comes(close)):
            yield from source.skip()
            name = yield from self._open(source)
            if name is None:
                return None
            value = yield from self._value(source, name, "any", depth + 1)
            if value is None:
                return None
            members.append((name, value))
            yield from source.skip()
        if all(name == _ITEM for name, _ in members):
            return f"[{', '.join(value for _, value in members)}]"
        return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members) + "}"
