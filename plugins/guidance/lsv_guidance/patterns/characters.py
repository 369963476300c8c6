"""Sets of characters, as sorted ranges of code points that do not touch."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

Ranges = tuple[tuple[int, int], ...]

LAST = sys.maxunicode
_SURROGATES = (0xD800, 0xDFFF)
_FOLDED = 0x3000
"""Case-insensitive patterns only fold characters below this one. Above, hardly any script has cases."""


def join(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ranges, without surrogates."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(part for low, high in found for part in _without_surrogates(low, high))


def _without_surrogates(low: int, high: int) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    if high < first or low > last:
        yield low, high
        return
    if low < first:
        yield low, first - 1
    if high > last:
        yield last + 1, high


def complement(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in ranges:
        if at < low:
            found.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        found.append((at, LAST))
    return join(found)


def contains(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def of(text: str) -> Ranges:
    return join((ord(char), ord(char)) for char in text)


ANY = join([(0, LAST)])
DIGIT = join([(0x30, 0x39)])
WORD = join([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = join(
    [(9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
     (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
NOT_LINE_END = complement(of("\n\r\u2028\u2029"))


def fold(ranges: Ranges) -> Ranges:
    """The set with both cases of each letter."""
    both = set[int]()
    for low, high in ranges:
        for code in range(low, min(high, _FOLDED) + 1):
            both.update(ord(char) for char in (chr(code).lower(), chr(code).upper()) if len(char) == 1)
    return join([*ranges, *((code, code) for code in both)])


def category(name: str) -> Ranges | None:
    """The characters of a general category, such as ``Lu`` or ``L``; None for an unknown one."""
    wanted = _LONG_NAMES.get(name, name)
    return join(part for known, parts in _categories().items() if known.startswith(wanted) for part in parts) or None


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """All characters by category. Reading Unicode's table takes a fraction of a second."""
    found: dict[str, list[tuple[int, int]]] = {}
    last, began = "", 0
    for code in range(LAST + 1):
        now = unicodedata.category(chr(code))
        if now != last:
            found.setdefault(last, []).append((began, code - 1))
            last, began = now, code
    found.setdefault(last, []).append((began, LAST))
    del found[""]
    return found


_LONG_NAMES = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z",
    "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip
