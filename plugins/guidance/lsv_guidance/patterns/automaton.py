"""Languages of texts as deterministic automata, which can be joined, complemented, compared and written as patterns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from lsv_guidance.patterns import characters
from lsv_guidance.patterns.characters import ANY, WORD, Ranges
from lsv_guidance.patterns.nondeterministic import Machine, TooComplex

Rows = tuple[tuple[int, ...], ...]
State = TypeVar("State")

MOST_STATES = 2000
"""Limit on states. A pattern that needs more is refused."""
_MOST_MERGED = 400
"""Limit on states for minimisation, whose time is quadratic."""


@dataclass(frozen=True)
class Language:
    """A set of texts, as a complete automaton with initial state 0."""

    parts: tuple[tuple[int, int], ...]
    """All characters, split into ranges."""
    kinds: tuple[int, ...]
    """For each range, the column of ``rows``."""
    rows: Rows
    """For each state, the next state by column."""
    accepting: frozenset[int]

    @classmethod
    def of(cls, machine: Machine) -> Language:
        """The texts in which the pattern matches somewhere. Raises ``TooComplex``."""
        parts, kinds = _cut([*machine.sets, WORD])
        samples = [parts[kinds.index(kind)][0] for kind in range(max(kinds) + 1)]
        rows, states = _explore(machine.begin, lambda state: (machine.step(state, sample) for sample in samples))
        accepting = frozenset(number for number, state in enumerate(states) if machine.accepts(state))
        return Language(parts, kinds, rows, accepting).smallest()

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Language:
        """Exactly these texts."""
        wanted = sorted(set(texts))
        parts, kinds = _cut([characters.of(char) for char in sorted({char for text in wanted for char in text})])
        columns = {low: kind for (low, high), kind in zip(parts, kinds, strict=True) if low == high}
        rows, accepting = [[1] * (max(kinds) + 1), [1] * (max(kinds) + 1)], set[int]()
        for text in wanted:
            state = 0
            for char in text:
                column = columns[ord(char)]
                if rows[state][column] == 1:
                    _check_size(len(rows))
                    rows[state][column] = len(rows)
                    rows.append([1] * (max(kinds) + 1))
                state = rows[state][column]
            accepting.add(state)
        return cls(parts, kinds, tuple(map(tuple, rows)), frozenset(accepting)).smallest()

    @classmethod
    def any(cls) -> Language:
        return cls(ANY, (0,) * len(ANY), ((0,),), frozenset({0}))

    @cached_property
    def is_empty(self) -> bool:
        return not self.accepting

    def __and__(self, other: Language) -> Language:
        return self._product(other, lambda one, two: one and two)

    def __or__(self, other: Language) -> Language:
        return self._product(other, lambda one, two: one or two)

    def __sub__(self, other: Language) -> Language:
        return self._product(other, lambda one, two: one and not two)

    def __contains__(self, text: str) -> bool:
        state = 0
        for char in text:
            kind = self._kind_of(ord(char))
            if kind is None:
                return False
            state = self.rows[state][kind]
        return state in self.accepting

    def _kind_of(self, code: int) -> int | None:
        at = bisect_right(self.parts, (code, characters.LAST)) - 1
        return self.kinds[at] if at >= 0 and code <= self.parts[at][1] else None

    def characters_of(self, kind: int) -> Ranges:
        return characters.join(part for part, one in zip(self.parts, self.kinds, strict=True) if one == kind)

    def _product(self, other: Language, accepts: Callable[[bool, bool], bool]) -> Language:
        parts, pairs = _refine(self, other)
        distinct = sorted(set(pairs))
        kinds = tuple(map(distinct.index, pairs))

        def follow(pair: tuple[int, int]) -> Iterable[tuple[int, int]]:
            one, two = self.rows[pair[0]], other.rows[pair[1]]
            return ((one[left], two[right]) for left, right in distinct)

        rows, states = _explore((0, 0), follow)
        accepting = frozenset(
            number for number, (one, two) in enumerate(states) if accepts(one in self.accepting, two in other.accepting)
        )
        return Language(parts, kinds, rows, accepting).smallest()

    def smallest(self) -> Language:
        """The same language, minimised unless it is large."""
        if len(self.rows) > _MOST_MERGED:
            return self
        block = [int(state in self.accepting) for state in range(len(self.rows))]
        while True:
            signatures = [(block[state], *(block[one] for one in row)) for state, row in enumerate(self.rows)]
            numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
            finer = [numbers[signature] for signature in signatures]
            if max(finer) == max(block):
                break
            block = finer
        first = {block: state for state, block in reversed(list(enumerate(finer)))}
        rows = [tuple(finer[one] for one in self.rows[first[number]]) for number in range(max(finer) + 1)]
        columns = list(zip(*rows, strict=True))
        kept = list(dict.fromkeys(columns))
        kinds = tuple(kept.index(columns[kind]) for kind in self.kinds)
        accepting = frozenset(finer[state] for state in self.accepting)
        return Language(self.parts, kinds, tuple(zip(*kept, strict=True)), accepting)


def _explore(begin: State, follow: Callable[[State], Iterable[State]]) -> tuple[Rows, list[State]]:
    """The reachable states in order, each with its next states by column.

    Raises ``TooComplex``.
    """
    numbers, order, rows = {begin: 0}, [begin], list[tuple[int, ...]]()
    for state in order:
        row = []
        for following in follow(state):
            if following not in numbers:
                _check_size(len(numbers))
                numbers[following] = len(numbers)
                order.append(following)
            row.append(numbers[following])
        rows.append(tuple(row))
    return tuple(rows), order


def _check_size(states: int) -> None:
    if states >= MOST_STATES:
        raise TooComplex(f"it needs more than {MOST_STATES} states")


def _cut(sets: Sequence[Ranges]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """All characters, split so that each range is inside or outside each set, and the kinds of the ranges."""
    starts = sorted({0, *(code for ranges in sets for low, high in ranges for code in (low, high + 1))})
    parts = [
        part
        for low, after in zip(starts, [*starts[1:], characters.LAST + 1], strict=True)
        if low <= characters.LAST
        for part in characters.join([(low, after - 1)])
    ]
    membership = list(zip(*(_membership(ranges, parts) for ranges in sets), strict=True)) if sets else [()] * len(parts)
    distinct = {one: number for number, one in enumerate(dict.fromkeys(membership))}
    return tuple(parts), tuple(distinct[one] for one in membership)


def _membership(ranges: Ranges, parts: Sequence[tuple[int, int]]) -> list[bool]:
    found, at = [], 0
    for low, _ in parts:
        while at < len(ranges) and ranges[at][1] < low:
            at += 1
        found.append(at < len(ranges) and ranges[at][0] <= low)
    return found


def _refine(one: Language, two: Language) -> tuple[tuple[tuple[int, int], ...], list[tuple[int, int]]]:
    parts, pairs, left, right = list[tuple[int, int]](), list[tuple[int, int]](), 0, 0
    while left < len(one.parts) and right < len(two.parts):
        low = max(one.parts[left][0], two.parts[right][0])
        high = min(one.parts[left][1], two.parts[right][1])
        if low <= high:
            parts.append((low, high))
            pairs.append((one.kinds[left], two.kinds[right]))
        if one.parts[left][1] <= high:
            left += 1
        if two.parts[right][1] <= high:
            right += 1
    return tuple(parts), pairs
