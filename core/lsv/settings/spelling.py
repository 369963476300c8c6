"""What a misspelt option was meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_TAIL = 4


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is a slip from: a letter or two differ, or its end.

    A name of other words is never offered, however alike it looks: ``--max-log-len`` is no ``--max-model-len``, and who
    takes such advice sets something else.
    """
    reach = 1 if len(name) < 6 else 2
    near = [(_distance(name, one, reach), one) for one in known]
    close = min((pair for pair in near if pair[0] <= reach), default=None)
    if close is not None:
        return close[1]
    return next((one for _, one in near if len(one) > _TAIL and 0 < _extra(name, one) <= _TAIL), None)


def suggest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean …?"`` to append to an error, or nothing."""
    found = misspelt(name, known)
    return f"; did you mean {found}?" if found else ""


def _extra(name: str, known: str) -> int:
    """How many letters ``name`` has behind a known name; 0 where it begins otherwise."""
    return len(name) - len(known) if name.startswith(known) else 0


def _distance(one: str, other: str, reach: int) -> int:
    """Letters to insert, drop, replace or swap with their neighbour (Damerau); beyond ``reach`` all are the same."""
    if abs(len(one) - len(other)) > reach:
        return reach + 1
    older: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, against in enumerate(other, 1):
            least = min(last[column] + 1, line[-1] + 1, last[column - 1] + (letter != against))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == against:
                least = min(least, older[column - 2] + 1)
            line.append(least)
        older, last = last, line
    return last[-1]
