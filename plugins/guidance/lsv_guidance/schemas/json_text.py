"""Reads and compares JSON values with all their digits."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

_MOST_DIGITS = 400
_SHOWN = 60


def read_json(text: str) -> Any:
    """Numbers with a point or an exponent become decimals. Raises ``ValueError`` or ``RecursionError``."""
    return json.loads(text, parse_float=_read_decimal, parse_constant=_refuse_constant)


def read_json_prefix(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where it ends. Raises as ``read_json`` does."""
    return json.JSONDecoder(parse_float=_read_decimal, parse_constant=_refuse_constant).raw_decode(text, at)


def _read_decimal(text: str) -> Decimal:
    found = Decimal(text)
    if found and abs(found.adjusted()) > _MOST_DIGITS:
        raise ValueError(f"the number {text[:_SHOWN]} has more than {_MOST_DIGITS} digits")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if is_number(value):
        return "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def shorten(value: Any) -> str:
    text = json.dumps(value, default=float, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def plain_number(value: Fraction) -> int | float | None:
    """The number as an int or float; None if a double can't represent all of its digits."""
    if value.denominator == 1 and abs(value) <= 1 << 53:
        return int(value)
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if Fraction(repr(found)) == value else None
