"""Bounds of numbers: whether any number is within them, and their schema for llguidance."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import ceil, floor, gcd, lcm
from typing import Any

from lsv_guidance.schemas.branch import Numbers
from lsv_guidance.schemas.json_text import plain_number
from lsv_guidance.schemas.refusal import NotFollowed

_MOST_REMAINDERS = 90_000
_LARGEST = Fraction(1 << 53)
"""Doubles represent all integers up to this one. Larger bounds of numbers are clamped to it."""


def write_numbers(numbers: Numbers, path: str) -> dict[str, Any] | None:
    """The schema; None if no number is within the bounds. Raises ``NotFollowed`` for numbers with too many digits."""
    if numbers.values is not None:
        values = [_plain(value, path) for value in numbers.values if numbers.has(value)]
        return {"enum": values} if values else None
    step = _common_multiple(numbers)
    numbers = _within(numbers, step)
    if is_empty(numbers, step):
        return None
    if not numbers.integer:
        numbers = _avoid_whole_bounds(numbers)
    found: dict[str, Any] = {"type": "integer" if numbers.integer else "number"}
    if numbers.low is not None:
        found["exclusiveMinimum" if numbers.low[1] else "minimum"] = _plain(numbers.low[0], path)
    if numbers.high is not None:
        found["exclusiveMaximum" if numbers.high[1] else "maximum"] = _plain(numbers.high[0], path)
    if step is not None:
        _check_cost(step, path)
        found["multipleOf"] = _plain(step, path)
    return found


def _check_cost(step: Fraction, path: str) -> None:
    """Raises ``NotFollowed`` for steps that llguidance 1.9 compiles for seconds, because it enumerates remainders."""
    places = next((places for places in range(30) if (step * 10**places).denominator == 1), 30)
    digits = int(step * 10**places)
    if digits > _MOST_REMAINDERS and int(str(digits).rstrip("0")) > 10:
        raise NotFollowed("multipleOf", path, f"values over {_MOST_REMAINDERS} are only supported if they are round")


def has_number(numbers: Numbers) -> bool:
    if numbers.values is not None:
        return any(map(numbers.has, numbers.values))
    step = _common_multiple(numbers)
    return not is_empty(_within(numbers, step), step)


def is_empty(numbers: Numbers, step: Fraction | None) -> bool:
    """Whether no number is between the bounds, apart from ``values``."""
    if numbers.low is None or numbers.high is None:
        return False
    (low, without_low), (high, without_high) = numbers.low, numbers.high
    if low > high or (low == high and (without_low or without_high)):
        return True
    if step is None:
        return False
    first = (floor(low / step) + 1 if without_low else ceil(low / step)) * step
    return first > high or (first == high and without_high)


def _common_multiple(numbers: Numbers) -> Fraction | None:
    multiples = numbers.multiples
    if numbers.integer and multiples:
        multiples |= {Fraction(1)}
    return reduce(_least_common, multiples) if multiples else None


def _least_common(one: Fraction, two: Fraction) -> Fraction:
    return Fraction(lcm(one.numerator, two.numerator), gcd(one.denominator, two.denominator))


def _within(numbers: Numbers, step: Fraction | None) -> Numbers:
    """The bounds, rounded for integers and clamped for other numbers to the exact integers of doubles."""
    low, high = numbers.low, numbers.high
    if numbers.integer and step is None:
        low = low and (Fraction(floor(low[0]) + 1 if low[1] else ceil(low[0])), False)
        high = high and (Fraction(ceil(high[0]) - 1 if high[1] else floor(high[0])), False)
    if not numbers.integer:
        low = max(low, (-_LARGEST, False)) if low else None
        high = min(high, (_LARGEST, False)) if high else None
    return replace(numbers, low=low, high=high)


def _avoid_whole_bounds(numbers: Numbers) -> Numbers:
    """Move an excluded integer bound slightly if the other bound has the same integer part.

    Otherwise llguidance 1.9 allows the excluded number: 1 for numbers above 1 and up to 1.5.
    """
    if numbers.low is None or numbers.high is None:
        return numbers
    (low, without_low), (high, without_high) = numbers.low, numbers.high
    bit = next(bit for places in range(2, 400) if (bit := Fraction(1, 10**places)) * 10 < high - low or low == high)
    if high - low < 1 and without_low and low.denominator == 1:
        low, without_low = low + bit, False
    if high - low < 1 and without_high and high.denominator == 1:
        high, without_high = high - bit, False
    return replace(numbers, low=(low, without_low), high=(high, without_high))


def _plain(value: Fraction, path: str) -> int | float:
    found = plain_number(value)
    if found is None:
        raise NotFollowed("", path, f"the number {float(value):g} has more digits than a double")
    return found
