"""Values that models write, in JSON or as Python literals, handed on as JSON while they come.

Nothing is evaluated: a small automaton follows the value, with a bound on how deep it is nested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from lsv_parsers.source import Reading, Source

MAX_DEPTH = 64
"""Lists and objects around a value."""
_MAX_ATOM = 512
"""Characters of a number or a word."""

_ATOM = re.compile(r"[A-Za-z0-9_.+-]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x1f]")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in ("'", '"')}
_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", **_JSON_WORDS}
_JSON_ESCAPES = frozenset('"\\/bfnrt')
_PYTHON_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]+")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_AS_JSON = {"(": "[", ")": "]"}

Show = Callable[[str], None]


def quoted(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def copy_value(source: Source, show: Show, *, python: bool = False) -> Reading[bool]:
    """Show the value that stands here as JSON, piece by piece; False where it is none, or ends before its end.

    What is shown up to there is the beginning of a JSON value. ``python`` reads literals of Python: either quotes,
    ``True``, tuples, and commas before a bracket that closes.
    """
    return (yield from _Value(source, show, python).copy())


def python_as_json(text: str) -> str | None:
    """A Python literal as JSON; None if the text is not one."""
    source, shown = Source(), list[str]()
    source.push(text)
    source.ended = True
    try:
        next(copy_value(source, shown.append, python=True))
    except StopIteration as stop:
        return "".join(shown) if stop.value and not source.left else None
    raise AssertionError("a reader waits for more of a finished text")


class _Value:
    """One value on its way; ``_open`` are the brackets that will close what is open."""

    def __init__(self, source: Source, show: Show, python: bool) -> None:
        self._source = source
        self._show = show
        self._python = python
        self._words = _PYTHON_WORDS if python else _JSON_WORDS
        self._openers = "{[(" if python else "{["
        self._quotes = "\"'" if python else '"'
        self._open: list[str] = []

    def copy(self) -> Reading[bool]:
        if not (yield from self._begin()):
            return False
        while self._open:
            if not (yield from self._go_on()):
                return False
        return True

    def _begin(self) -> Reading[bool]:
        """Read an atom, a string, or the opening of a list or an object with its first key."""
        yield from self._source.skip()
        first = yield from self._source.peek()
        if first and first in self._openers:
            if len(self._open) == MAX_DEPTH:
                return False
            self._show(_AS_JSON.get(first, first))
            self._source.take(1)
            self._open.append(_CLOSERS[first])
            return (yield from self._enter())
        if first and first in self._quotes:
            return (yield from copy_string(self._source, self._show, python=self._python))
        return (yield from self._atom())

    def _enter(self) -> Reading[bool]:
        """Read on behind an opening bracket or a comma: what closes, or a key, or the next value of a list."""
        yield from self._source.skip()
        if (yield from self._source.peek()) == self._open[-1]:
            self._close()
            return True
        return (yield from self._item())

    def _item(self) -> Reading[bool]:
        if self._open[-1] != "}":
            return (yield from self._begin())
        yield from self._source.skip()
        if (yield from self._source.peek()) not in tuple(self._quotes):
            return False
        if not (yield from copy_string(self._source, self._show, python=self._python)):
            return False
        yield from self._source.skip()
        if not (yield from self._source.comes(":")):
            return False
        self._show(": ")
        return (yield from self._begin())

    def _go_on(self) -> Reading[bool]:
        """Read what follows a value: a comma and the next one, or what closes."""
        yield from self._source.skip()
        following = yield from self._source.peek()
        if following == self._open[-1]:
            self._close()
            return True
        if following != ",":
            return False
        self._source.take(1)
        yield from self._source.skip()
        closes = (yield from self._source.peek()) == self._open[-1]
        if closes and self._python:
            self._close()
            return True
        self._show(", ")
        return (yield from self._item())

    def _close(self) -> None:
        closer = self._source.take(1)
        self._open.pop()
        self._show(_AS_JSON.get(closer, closer))

    def _atom(self) -> Reading[bool]:
        text = yield from read_atom(self._source)
        word = self._words.get(text)
        if word is None and _NUMBER.fullmatch(text) is None:
            return False
        self._show(word or text)
        return True


def read_atom(source: Source) -> Reading[str]:
    """A number or a word, whole; what is too long for one is cut."""
    found: list[str] = []
    size = 0
    while size <= _MAX_ATOM:
        match = _ATOM.match(source.text, source.at)
        found.append(source.take(match.end() - source.at if match else 0))
        size += len(found[-1])
        if source.left or source.ended:
            break
        yield
    return "".join(found)


def copy_string(source: Source, show: Show, *, python: bool = False) -> Reading[bool]:
    """Show the string that stands here, in JSON's quotes; False where the text ends inside it.

    Line breaks inside, and backslashes that escape nothing, are escaped: models write both.
    """
    quote = source.take(1)
    show('"')
    plain = _PLAIN[quote]
    while True:
        found = plain.match(source.text, source.at)
        if found:
            text = source.take(found.end() - source.at)
            show(quoted(text) if _CONTROL.search(text) or '"' in text else text)
        following = yield from source.peek()
        if not following:
            return False
        if following == quote:
            source.take(1)
            show('"')
            return True
        if following == "\\" and not (yield from _copy_escape(source, show, python)):
            return False


def _copy_escape(source: Source, show: Show, python: bool) -> Reading[bool]:
    """Show an escape as JSON has it; False where the text ends inside it."""
    if not (yield from source.has(2)):
        return False
    letter = source.text[source.at + 1]
    size = _CODES.get(letter, 0) if python or letter == "u" else 0
    if size:
        if not (yield from source.has(2 + size)):
            return False
        digits = source.text[source.at + 2 : source.at + 2 + size]
        if _HEX.fullmatch(digits) and int(digits, 16) <= 0x10FFFF:
            source.take(2 + size)
            # also of half a pair of surrogates, which no text may hold and JSON can spell
            show(f"\\u{digits}" if size == 4 else json.dumps(chr(int(digits, 16)))[1:-1])
            return True
    elif not python and letter in _JSON_ESCAPES:
        show(source.take(2))
        return True
    elif python and letter in _PYTHON_ESCAPES:
        source.take(2)
        show(quoted(_PYTHON_ESCAPES[letter]))
        return True
    source.take(1)
    show("\\\\")
    return True
