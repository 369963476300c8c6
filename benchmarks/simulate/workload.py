"""Who asks for what: conversations, each turn of which begins with all that was said before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from simulate.clock import Clock
from simulate.engine import Job


@dataclass(frozen=True)
class Load:
    """Lengths in tokens, times in seconds. Either so many ``users``, who go on for ever, or a ``rate`` of conversations
    that begin.
    """

    users: int = 0
    rate: float = 0.0
    shared: int = 0
    """What all prompts begin with."""
    first: int = 256
    """What a conversation begins with, in addition."""
    said: int = 64
    """What a user adds in each turn."""
    answer: int = 200
    turns: int = 5
    think: float = 30.0
    """Between an answer and the next turn."""
    spread: float = 0.5
    """Standard deviation over mean of lengths; 0 for all equal, 1 for exponential ones, as thinking always is."""
    mixed: bool = True
    """Whether users are in the midst of conversations at the beginning."""


class Crowd:
    """Lets all of a load happen; ``submit`` takes each request."""

    def __init__(
        self, clock: Clock, load: Load, block_size: int, submit: Callable[[Job], None], seed: str = ""
    ) -> None:
        self.clock, self.load, self.block_size, self.submit = clock, load, block_size, submit
        self._random = random.Random(f"{seed} load")
        self._numbers = count()
        for _ in range(load.users):
            self._let_begin(self._random.random() * load.think if load.mixed else 0.0)
        if load.rate:
            self._arrive()

    def _arrive(self) -> None:
        self.clock.after(self._random.expovariate(self.load.rate), self._arrive_one)

    def _arrive_one(self) -> None:
        self._begin()
        self._arrive()

    def _let_begin(self, seconds: float) -> None:
        self.clock.after(seconds, self._begin)

    def _begin(self) -> None:
        Conversation(self, next(self._numbers), random.Random(self._random.random())).ask()

    def end(self, thinks: float) -> None:
        """A conversation is over: its user begins another one."""
        if self.load.users:
            self._let_begin(thinks)


class Conversation:
    def __init__(self, crowd: Crowd, number: int, draws: random.Random) -> None:
        self._crowd, self._number, self._random = crowd, number, draws
        load = crowd.load
        self._names: list[bytes] = []
        self._turn = 0
        self._said = load.shared + self._draw(load.first)
        if load.mixed and number < load.users:
            self._turn = draws.randrange(load.turns)
            self._said += sum(self._draw(load.said) + self._draw(load.answer) for _ in range(self._turn))

    def ask(self) -> None:
        load = self._crowd.load
        prompt, answer = self._said + self._draw(load.said), self._draw(load.answer)
        chain, whole = self._name_blocks(prompt), self._name_blocks(prompt + answer)
        ended = partial(self._go_on, prompt + answer)
        self._crowd.submit(Job(self._number, max(1, prompt), answer, chain, whole, ended))

    def _go_on(self, length: int, lost: bool) -> None:
        """After an answer, or a request that was lost: its turn is asked again."""
        load = self._crowd.load
        thinks = self._random.gammavariate(1.0, load.think) if load.think else 0.0
        if not lost:
            self._said, self._turn = length, self._turn + 1
        if self._turn == load.turns:
            self._crowd.end(thinks)
        else:
            self._crowd.clock.after(max(thinks, 1e-3 * lost), self.ask)

    def _draw(self, mean: int) -> int:
        spread = self._crowd.load.spread
        if not spread or not mean:
            return mean
        return max(1, round(self._random.gammavariate(1 / spread**2, mean * spread**2)))

    def _name_blocks(self, length: int) -> tuple[bytes, ...]:
        size, shared = self._crowd.block_size, self._crowd.load.shared
        for place in range(len(self._names), length // size):
            owner = -1 if (place + 1) * size <= shared else self._number
            self._names.append(b"%d/%d" % (owner, place))
        return tuple(self._names[: length // size])
