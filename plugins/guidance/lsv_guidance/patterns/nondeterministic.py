"""Nondeterministic automata of patterns. Assertions such as ``^`` and ``\\b`` are conditions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from lsv_guidance.patterns import characters
from lsv_guidance.patterns.characters import ANY, WORD, Ranges
from lsv_guidance.patterns.tree import Assertion, Chars, Concat, LookAhead, Node, Repeat, Union

MOST_NODES = 5_000
"""Limit on nodes of a pattern with its repetitions expanded."""
MOST_WORK = 300_000
"""Limit on visits of nodes for one pattern, which take a fraction of a second."""

State = tuple[frozenset[int], bool, bool]
"""The reached nodes, whether the text has just begun, and whether the last character belongs to a word."""


class TooComplex(ValueError):
    """A pattern is too complex for an automaton; the message says why."""


class Machine:
    """Finds a pattern anywhere in a text. Raises ``TooComplex`` for look-ahead inside the pattern, or if it is too
    large.
    """

    def __init__(self, pattern: Node) -> None:
        self._moves: list[list[tuple[Ranges, int]]] = []
        self._free: list[list[tuple[str, int]]] = []
        """Transitions that consume no character, with their condition; empty for none."""
        start, self._end = self._node(), self._node()
        self._moves[start].append((ANY, start))
        self._moves[self._end].append((ANY, self._end))
        self._add(pattern, start, self._end)
        self._work = 0
        self.begin: State = (frozenset({start}), True, False)

    @cached_property
    def sets(self) -> list[Ranges]:
        """The sets of characters that the pattern distinguishes."""
        return list({ranges for moves in self._moves for ranges, _ in moves})

    def step(self, state: State, code: int) -> State:
        word = characters.contains(WORD, code)
        reached = self._closure(state, next_word=word, at_end=False)
        found = {
            target for node in reached for ranges, target in self._moves[node] if characters.contains(ranges, code)
        }
        return frozenset(found), False, word

    def accepts(self, state: State) -> bool:
        return self._end in self._closure(state, next_word=False, at_end=True)

    def _closure(self, state: State, *, next_word: bool, at_end: bool) -> Iterable[int]:
        nodes, at_start, was_word = state
        holding = {"", "edge" if was_word != next_word else "inside"}
        holding |= {name for name, holds in (("start", at_start), ("end", at_end)) if holds}
        reached, waiting = set(nodes), list(nodes)
        while waiting:
            for condition, target in self._free[waiting.pop()]:
                if condition in holding and target not in reached:
                    reached.add(target)
                    waiting.append(target)
        self._work += len(reached)
        if self._work > MOST_WORK:
            raise TooComplex("it has too many ways to match")
        return reached

    def _node(self) -> int:
        if len(self._moves) >= MOST_NODES:
            raise TooComplex("its repetitions are too large")
        self._moves.append([])
        self._free.append([])
        return len(self._moves) - 1

    def _add(self, node: Node, begin: int, end: int) -> None:
        if isinstance(node, Chars):
            self._moves[begin].append((node.ranges, end))
        elif isinstance(node, Assertion):
            self._free[begin].append((node.kind, end))
        elif isinstance(node, Union):
            for option in node.options:
                self._add(option, begin, end)
        elif isinstance(node, Repeat):
            self._repeat(node, begin, end)
        elif isinstance(node, LookAhead):
            raise TooComplex("look-ahead is only supported at the beginning of a pattern, after ^")
        else:
            self._chain(node, begin, end)

    def _chain(self, node: Concat, begin: int, end: int) -> None:
        for part in node.parts[:-1]:
            following = self._node()
            self._add(part, begin, following)
            begin = following
        if node.parts:
            self._add(node.parts[-1], begin, end)
        else:
            self._free[begin].append(("", end))

    def _repeat(self, node: Repeat, begin: int, end: int) -> None:
        for _ in range(node.low):
            following = self._node()
            self._add(node.body, begin, following)
            begin = following
        if node.high is None:
            loop = self._node()
            self._free[begin].append(("", loop))
            self._add(node.body, loop, loop)
            self._free[loop].append(("", end))
            return
        for _ in range(node.high - node.low):
            self._free[begin].append(("", end))
            following = self._node()
            self._add(node.body, begin, following)
            begin = following
        self._free[begin].append(("", end))
