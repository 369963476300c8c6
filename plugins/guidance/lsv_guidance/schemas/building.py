"""Branches that several keywords build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lsv_guidance.schemas.branch import Branch, Items, Properties, Term, only, others
from lsv_guidance.schemas.document import Place

NO_VALUE = (Term(Place("#false", False, "")),)
"""A term that no value satisfies."""
POSITIONS = 8
"""Limit on the first items that may be the one that ``contains`` asks for."""


def absent_property(name: str) -> Iterable[Branch]:
    """Values without this property."""
    return others("object"), only("object", properties=(Properties(((name, NO_VALUE),)),))


def count_items(wanted: Term, unwanted: Term, low: int, high: int | None) -> Iterator[Branch]:
    """Arrays with ``low`` to ``high`` wanted items, which are consecutive and near the beginning."""
    if high is None:
        if low == 0:
            yield only("array")
        for before in range(POSITIONS if low else 0):
            yield only("array", items=(Items(((),) * before + ((wanted,),) * low, low=before + low),))
        return
    for number in range(low, min(high, low + 2) + 1):
        for before in range(POSITIONS // 2 if number else 1):
            prefix = ((unwanted,),) * before + ((wanted,),) * number
            yield only("array", items=(Items(prefix, (unwanted,), before + number),))
