"""Formulas between single dollar signs, which most models write, but which look like prices."""

from __future__ import annotations

import re

MARK = "\u2063"
"""An invisible character by which the chat component finds formulas. ``typed.js`` removes it from copied text."""

DELIMITERS = {"left": f"${MARK}", "right": f"{MARK}$", "display": False}

_BLOCK = r"(?m:^[ \t>]*(?P<fence>`{3,}|~{3,})[^\n]*\n(?s:.*?)(?:^[ \t>]*(?P=fence)|\Z))"
"""A block of code; up to the end of the text while the block is being written."""
_CODE = r"(?P<ticks>`+)(?s:.+?)(?<!`)(?P=ticks)(?!`)"
_FORMULA = r"(?<![\\$\w])\$(?=[^\s$])(?P<formula>(?:\\.|[^$\\\n])+?)(?<!\s)\$(?![\w$])"
_FOUND = re.compile(f"{_BLOCK}|{_CODE}|{_FORMULA}")
_PRICE = re.compile(r"\d[^\\{}]*?\s[^\\{}]*?\b[a-zA-Z]{2,}")
"""An amount with words after it: "5 for this, and that costs 10"."""


def mark_formulas(text: str) -> str:
    """The text with a mark inside the dollars of each formula. Code is unchanged.

    A formula begins right after a dollar and ends right before one on the same line, with no letter or digit around
    them. This is Pandoc's rule, which leaves amounts of money alone.
    """
    return _FOUND.sub(_mark, text)


def _mark(found: re.Match[str]) -> str:
    formula = found["formula"]
    if formula is None or _PRICE.match(formula):
        return found[0]
    return f"${MARK}{formula}{MARK}$"
