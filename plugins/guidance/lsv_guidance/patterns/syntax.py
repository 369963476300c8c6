"""Reads regular expressions as ECMA 262 writes them, with Python's ``(?P<name>…)`` and ``(?i)``."""

from __future__ import annotations

import re

from lsv_guidance.patterns import characters
from lsv_guidance.patterns.characters import Ranges
from lsv_guidance.patterns.tree import EMPTY, Assertion, Chars, Concat, LookAhead, Node, Repeat, Union

_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:(,)(\d*))?\})\??")
_GROUP = re.compile(r"\?(?:(?P<plain>:)|P?<(?P<name>[A-Za-z_]\w*)>|(?P<look>[=!])|(?P<flags>[a-z]+)(?P<scope>[:)]))")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"([pP])(?:\{(?:(?:General_Category|gc)=)?([A-Za-z_]+)\}|([A-Z]))")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CLASSES = {"d": characters.DIGIT, "w": characters.WORD, "s": characters.SPACE}
_MOST_REPEATS = 1 << 20
_DEEPEST = 100


class UnreadablePattern(ValueError):
    """A regular expression can't be read; the message says why."""


def read_pattern(text: str) -> Node:
    """Raises ``UnreadablePattern``."""
    reader = _Reader(text)
    found = reader.alternatives(0)
    if not reader.ended:
        raise UnreadablePattern("a closing bracket has no opening bracket")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._fold = self._dotall = False

    @property
    def ended(self) -> bool:
        return self._at == len(self._text)

    def alternatives(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise UnreadablePattern(f"groups are nested more than {_DEEPEST} deep")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Union(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts = list[Node]()
        while not self.ended and self._text[self._at] not in "|)":
            part = self._quantified(self._atom(depth))
            parts += part.parts if isinstance(part, Concat) else [part]
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _quantified(self, atom: Node) -> Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return atom
        if isinstance(atom, Assertion | LookAhead):
            raise UnreadablePattern(f"{found[0]} can't repeat what precedes it")
        self._at = found.end()
        if _QUANTIFIER.match(self._text, self._at) or self._text[self._at : self._at + 1] == "+":
            raise UnreadablePattern(f"{found[0]} repeats a repetition")
        if found[2] is None:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[1]]
        else:
            low = int(found[2])
            high = low if found[3] is None else int(found[4]) if found[4] else None
        if low > _MOST_REPEATS or (high is not None and not low <= high <= _MOST_REPEATS):
            raise UnreadablePattern(f"{found[0]} must have numbers in ascending order, at most {_MOST_REPEATS}")
        return Repeat(atom, low, high)

    def _atom(self, depth: int) -> Node:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return Chars(self._folded(self._class()))
        if char == "\\":
            return self._escape()
        if char in "^$":
            return Assertion("start" if char == "^" else "end")
        if char == ".":
            return Chars(characters.ANY if self._dotall else characters.NOT_LINE_END)
        if char in "*+?":
            raise UnreadablePattern(f"{char} has nothing to repeat")
        return Chars(self._folded(characters.of(char)))

    def _group(self, depth: int) -> Node:
        before = self._fold, self._dotall
        look = None
        if self._text.startswith("?", self._at):
            found = _GROUP.match(self._text, self._at)
            if found is None:
                raise UnreadablePattern(f"({self._text[self._at : self._at + 3]} is not supported")
            self._at = found.end()
            look = found["look"]
            if found["flags"]:
                self._set_flags(found["flags"])
                if found["scope"] == ")":
                    return EMPTY
        body = self.alternatives(depth + 1)
        if not self._take(")"):
            raise UnreadablePattern("an opening bracket has no closing bracket")
        self._fold, self._dotall = before
        return body if look is None else LookAhead(body, look == "=")

    def _set_flags(self, flags: str) -> None:
        if unknown := set(flags) - set("isu"):
            raise UnreadablePattern(f"the flag {sorted(unknown)[0]} is not supported")
        self._fold |= "i" in flags
        self._dotall |= "s" in flags

    def _class(self) -> Ranges:
        negated = self._take("^")
        found = list[tuple[int, int]]()
        while not self._take("]"):
            first = self._member()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                found += _range(first, self._member())
            else:
                found += first
        ranges = self._folded(characters.join(found))
        return characters.complement(ranges) if negated else ranges

    def _member(self) -> Ranges:
        if self.ended:
            raise UnreadablePattern("a character class has no closing ]")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return characters.of(char)
        if self._take("b"):
            return characters.of("\b")
        if self._take("-"):
            return characters.of("-")
        return self._escaped()

    def _escape(self) -> Node:
        if self._take("b"):
            return Assertion("edge")
        if self._take("B"):
            return Assertion("inside")
        return Chars(self._folded(self._escaped()))

    def _escaped(self) -> Ranges:
        if self.ended:
            raise UnreadablePattern("it ends with a backslash")
        char = self._text[self._at]
        if found := _HEX.match(self._text, self._at):
            self._at = found.end()
            return self._code(int(next(filter(None, found.groups())), 16))
        if found := _PROPERTY.match(self._text, self._at):
            self._at = found.end()
            ranges = characters.category(found[2] or found[3])
            if ranges is None:
                raise UnreadablePattern(
                    f"\\{found[0]} is not supported; only general categories are, such as \\p{{Lu}}"
                )
            return ranges if found[1] == "p" else characters.complement(ranges)
        self._at += 1
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else characters.complement(ranges)
        if (
            char == "c"
            and self._text[self._at : self._at + 1].isascii()
            and self._text[self._at : self._at + 1].isalpha()
        ):
            self._at += 1
            return characters.of(chr(ord(self._text[self._at - 1]) % 32))
        if char == "0" and self._text[self._at : self._at + 1].isdigit():
            raise UnreadablePattern("octal escapes are not supported")
        if char in _CONTROLS:
            return characters.of(_CONTROLS[char])
        if char.isascii() and char.isdigit():
            raise UnreadablePattern(f"a backreference (\\{char}) is not supported")
        if char.isascii() and char.isalpha():
            raise UnreadablePattern(f"the escape \\{char} is not supported")
        return characters.of(char)

    def _code(self, code: int) -> Ranges:
        if 0xD800 <= code < 0xDC00 and (low := _LOW_SURROGATE.match(self._text, self._at)):
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if code > characters.LAST:
            raise UnreadablePattern(f"{code:#x} is beyond Unicode")
        return characters.join([(code, code)])

    def _folded(self, ranges: Ranges) -> Ranges:
        return characters.fold(ranges) if self._fold else ranges

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found


def _range(first: Ranges, last: Ranges) -> Ranges:
    if not all(len(ranges) == 1 and ranges[0][0] == ranges[0][1] for ranges in (first, last)):
        raise UnreadablePattern("a range in a character class must be from one character to another")
    if first[0][0] > last[0][0]:
        raise UnreadablePattern("a range in a character class is out of order")
    return ((first[0][0], last[0][0]),)
