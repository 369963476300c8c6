"""``call:f{a:1,b:<|"|>x<|"|>}``: keys without quotes, and texts between marks that are single tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.values import MAX_DEPTH, Show, copy_string, quoted

MAX_NAME = 256
_WORD_ENDS = marks_of(",", "}", "]")


@dataclass(frozen=True)
class KeyedCall:
    """``quote`` surrounds a text. A text without it ends where the value does."""

    begin: str
    quote: str

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        if not (yield from source.comes(self.begin)):
            return False
        found = yield from source.head(marks_of("{"), MAX_NAME)
        if found is None or not call.may_be(name := found[0].strip()):
            return False
        call.begin(name)
        return (yield from _Value(source, call.arguments, self.quote).copy())


class _Value:
    """Converts a value to JSON."""

    def __init__(self, source: Source, show: Show, quote: str) -> None:
        self._source = source
        self._show = show
        self._quote = quote
        self._depth = 0

    def copy(self) -> Reading[bool]:
        """Show the next value as JSON; returns False if the answer ends inside it."""
        source = self._source
        yield from source.skip()
        if (yield from source.comes(self._quote)):
            return (yield from self._text())
        first = yield from source.peek()
        if first == '"':
            return (yield from copy_string(source, self._show))
        if first in ("{", "["):
            return (yield from self._group(source.take(1)))
        return (yield from self._word())

    def _text(self) -> Reading[bool]:
        """Show a text up to the mark that ends it."""
        self._show('"')
        if not (yield from self._source.until(marks_of(self._quote), lambda text: self._show(quoted(text)))):
            return False
        self._show('"')
        return True

    def _group(self, opener: str) -> Reading[bool]:
        """Show an object or a list, whose opening bracket has been read."""
        source, closer = self._source, "}" if opener == "{" else "]"
        if self._depth == MAX_DEPTH:
            return False
        self._depth += 1
        self._show(opener)
        comma = ""
        while True:
            yield from source.skip()
            if (yield from source.comes(closer)):
                self._show(closer)
                self._depth -= 1
                return True
            self._show(comma)
            if opener == "{" and not (yield from self._key()):
                return False
            if not (yield from self.copy()):
                return False
            comma = ", "
            yield from source.skip()
            if (yield from source.peek()) == ",":
                source.take(1)

    def _key(self) -> Reading[bool]:
        """Show a key and a colon."""
        source = self._source
        if (yield from source.comes(self._quote)):
            if not (yield from self._text()):
                return False
            yield from source.skip()
        else:
            found = yield from source.head(marks_of(":"), MAX_NAME)
            if found is None:
                return False
            self._show(json.dumps(found[0].strip().strip('"'), ensure_ascii=False))
        if not (yield from source.comes(":")):
            return False
        self._show(": ")
        return True

    def _word(self) -> Reading[bool]:
        """Show a number or a JSON word, or else a text without marks, which must not be at the end."""
        pieces: list[str] = []
        if not (yield from self._source.until(_WORD_ENDS, pieces.append, reads=False)):
            return False
        word = "".join(pieces).strip()
        try:
            is_json = not isinstance(json.loads(word, parse_constant=lambda _: {}, parse_int=float), str | list | dict)
        except (ValueError, RecursionError):
            is_json = False
        self._show(word if is_json else f'"{quoted(word)}"')
        return bool(word)
