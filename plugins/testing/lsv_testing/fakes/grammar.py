"""A grammar for a fake engine, and a compiler that has what a test gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import LsvError
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.slot import FakeSlot

EOS = 96


class Counting:
    """Answers are numbers that grow, from 0 to a last one: after token i one of the next three up to ``last``, and EOS
    after that. It can't go ahead of its answers.

    ``stuck`` is a token after which it can't go on, ``ends`` are numbers in the place of which an end may come.
    """

    def __init__(self, last: int, stuck: int | None = None, ends: range = range(0)) -> None:
        self._last, self._stuck, self._ends = last, stuck, ends
        self.seen: list[int] = []
        self.fault: str | None = None

    def begin(self) -> Counting:
        return type(self)(self._last, self._stuck, self._ends)

    @property
    def finished(self) -> bool:
        return bool(self.seen) and self.seen[-1] >= self._last

    def accept(self, ids: Sequence[int]) -> bool:
        for token in ids:
            assert token in self.allowed(), f"{token} may not follow {self.seen}"
            self.seen.append(token)
            if token == self._stuck:
                self.fault = "stuck"
        return self.fault is None

    def allowed(self) -> list[int]:
        first = self.seen[-1] + 1 if self.seen else 0
        return [*range(first, min(first + 3, self._last + 1)), *([EOS] if first in self._ends else ())]

    def fill(self, row: memoryview) -> None:
        bits = sum(1 << token for token in self.allowed())
        row.cast("B")[:] = bits.to_bytes(row.nbytes, "little")


class CountUp(Counting):
    """The same, and it can."""

    def advance(self, ids: Sequence[int]) -> int:
        for count, token in enumerate(ids):
            if token not in self.allowed() or token == self._stuck:
                return count
            self.seen.append(token)
        return len(ids)

    def rollback(self, count: int) -> None:
        del self.seen[len(self.seen) - count :]
        self.fault = None


class FakeCompiler:
    """Has what the test put in; the rest is being compiled."""

    vocab_size = 0
    eos = (EOS,)

    def __init__(self) -> None:
        self.found: dict[str, Counting | LsvError] = {}
        self.waited = 0

    def find(self, asked: StructuredOutputsParams, salt: bytes = b"") -> Counting | LsvError | None:
        return self.found.get(asked.text)

    def first(self, asked: StructuredOutputsParams, salt: bytes) -> None:
        """Not known ahead."""

    def wait(self, seconds: float) -> None:
        self.waited += 1

    def close(self) -> None:
        pass

    def draft(self, slot: FakeSlot, most: int) -> list[int]:
        """What is going to be said, also where a grammar has its say; up to its end."""
        params = slot.begin.params
        form = None if params is None else params.structured_outputs
        matcher = None if form is None else cast(Counting, self.found[form.text]).begin()
        if matcher is not None:
            matcher.accept(slot.ids[slot.begin.prompt :])
        state, found = slot.states[-1], list[int]()
        while len(found) < most and not (matcher is not None and matcher.finished):
            allowed = range(fake_tokens.VOCABULARY) if matcher is None else matcher.allowed()
            found.append(fake_tokens.next_token(state, {*range(fake_tokens.VOCABULARY)} - {*allowed}))
            state = fake_tokens.fold(state, found[-1])
            if matcher is not None and found[-1] != EOS:
                matcher.accept(found[-1:])
        return found
