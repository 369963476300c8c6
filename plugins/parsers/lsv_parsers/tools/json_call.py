"""``{"name": "f", "arguments": {…}}``: a call as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from lsv_parsers.source import Reading, Source
from lsv_parsers.tools.call import Call
from lsv_parsers.values import copy_string, copy_value

_SPARE = ("id", "type", "index", "description", "tool_call_id")


@dataclass(frozen=True)
class JsonCall:
    """The arguments stand under one of ``arguments``: an object, the JSON of one as a text, or null."""

    names: tuple[str, ...] = ("name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters")
    wrapper: str = ""
    """The key of an inner object with both, if any."""
    spare: tuple[str, ...] = _SPARE
    """Keys that may precede the name and are ignored."""

    def read(self, call: Call) -> Reading[bool]:
        return (yield from _Object(self, call).read())


class NameKeyCall:
    """``{"f": {…}}``: the function's name is the key of its arguments."""

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        if not (yield from source.comes("{")):
            return False
        yield from source.skip()
        name = yield from read_string(source)
        if name is None or not call.may_be(name):
            return False
        yield from source.skip()
        if not (yield from source.comes(":")):
            return False
        yield from source.skip()
        if (yield from source.peek()) != "{":
            return False
        call.begin(name)
        if not (yield from copy_value(source, call.arguments)):
            return False
        yield from source.skip()
        return (yield from source.comes("}"))


class _Object:
    """One object: its name and its arguments come in any order."""

    def __init__(self, form: JsonCall, call: Call) -> None:
        self._form = form
        self._call = call
        self._source = call.source
        self._name: str | None = None
        self._id: str | None = None
        self._kept: list[str] = []
        """Arguments that stand before the name."""
        self._has_arguments = False

    def read(self) -> Reading[bool]:
        return (yield from self._members()) and self._finish()

    def _members(self) -> Reading[bool]:
        if not (yield from self._source.comes("{")):
            return False
        while True:
            yield from self._source.skip()
            if (yield from self._source.comes("}")):
                return True
            if not (yield from self._member()):
                return False
            yield from self._source.skip()
            if (yield from self._source.peek()) == ",":
                self._source.take(1)

    def _member(self) -> Reading[bool]:
        key = yield from read_string(self._source)
        if key is None:
            return False
        yield from self._source.skip()
        if not (yield from self._source.comes(":")):
            return False
        yield from self._source.skip()
        if key == self._form.wrapper and (yield from self._source.peek()) == "{":
            return (yield from self._members())
        if key in self._form.names and self._name is None:
            return (yield from self._read_name())
        if key in self._form.arguments and not self._has_arguments:
            return (yield from self._read_arguments())
        if key == "id" and (yield from self._source.peek()) == '"':
            self._id = yield from read_string(self._source)
            return self._id is not None
        if self._name is None and key not in self._form.spare:
            return False
        return (yield from copy_value(self._source, _forget))

    def _read_name(self) -> Reading[bool]:
        name = yield from read_string(self._source)
        if name is None or not self._call.may_be(name):
            return False
        self._name = name
        if self._has_arguments:
            self._begin("".join(self._kept))
        return True

    def _read_arguments(self) -> Reading[bool]:
        self._has_arguments = True
        first = yield from self._source.peek()
        if first == "{":
            return (yield from copy_value(self._source, self._show()))
        if first == '"':
            text = yield from read_string(self._source)
            if text is None or not _is_object(text):
                return False
            self._show()(text or "{}")
            return True
        if (yield from self._source.comes("null")):
            self._show()("{}")
            return True
        return False

    def _show(self) -> Callable[[str], None]:
        """Where arguments go: away, or to be kept until the name is known."""
        if self._name is None:
            return self._kept.append
        self._begin("")
        return self._call.arguments

    def _begin(self, arguments: str) -> None:
        assert self._name is not None
        self._call.begin(self._name, self._id)
        self._call.arguments(arguments)

    def _finish(self) -> bool:
        if self._name is None:
            return False
        if not self._has_arguments:
            self._begin("{}")
        return True


def read_string(source: Source) -> Reading[str | None]:
    """The JSON string that stands here; None where there is none, or only its beginning."""
    if (yield from source.peek()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from copy_string(source, pieces.append)):
        return None
    text: str = json.loads("".join(pieces))
    return text.encode(errors="replace").decode()


def _is_object(text: str) -> bool:
    try:
        return not text or isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _forget(text: str) -> None:
    """Of values that say nothing."""
