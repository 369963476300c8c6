"""What drafts cost, by measurement: to make, and to verify."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lsv.scheduler.drafts.drafting import Drafting
from lsv.scheduler.drafts.step_times import StepTimes
from lsv.scheduler.plan import StepPlan, StepResult

_WORTH = 1.05
"""By how much more tokens a second a step must give before it takes drafts: measurements are not exact."""
_GUESSED = 0.005
"""The share of a step's time that making guesses may take which are only held against what comes."""
_FIRST_TRIED = 8
"""How many drafts a step may have when none has had any; then twice as many tokens as any so far."""
_HALF = 256
"""Steps without drafts after which half of what these added counts as forgotten, so that they are tried again."""
_STALE = 128
"""Steps with drafts after which one is to do without, to know how long that takes."""
_OFTEN = 64
"""In every so many steps what is out of date is forgotten."""


class Costs:
    """Seconds of steps without and with drafts, of asking for these, and of making them."""

    def __init__(self) -> None:
        self._steps = StepTimes()
        """Of those behind which nothing is drafted, and of those with drafts."""
        self._asking = StepTimes()
        """Of those behind which drafts were made, without making them."""
        self._verifying = StepTimes(rising=True)
        """Of those with drafts: platforms may compute rows of several tokens in another way, which takes longer."""
        self._making = StepTimes()
        """By the number of drafts that were asked for."""
        self._step = self._verified = 0
        """The step that was learnt from last, and the last one with drafts."""

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """From a step without prompts."""
        tokens, seconds, step = plan.tokens, result.seconds - result.drafting, plan.step
        self._step = step
        if plan.rows.drafts:
            self._verified = step
            self._verifying.learn(tokens, seconds, step)
        if plan.rows.drafts or not plan.rows.propose:
            self._steps.learn(tokens, seconds, step)
        else:
            self._asking.learn(tokens, seconds, step)
        if not step % _OFTEN:
            for times in (self._steps, self._asking, self._verifying, self._making):
                times.forget(step)

    def learn_making(self, plan: StepPlan, seconds: float) -> None:
        """Drafts were made behind a step."""
        self._making.learn(sum(plan.rows.propose), seconds, plan.step)

    def alone(self, rows: int) -> float:
        """Seconds of a step of so many rows without drafts; 0 while that is not known."""
        return self._steps.of(rows)

    def is_stale(self, rows: int) -> bool:
        """Whether no step of so many rows has been without drafts for long."""
        return self._steps.age(rows, self._step) > _STALE

    def _longer(self, rows: int, drafts: int) -> float:
        """By how much drafts make a step of so many rows longer."""
        tokens = rows + drafts
        known = self._verifying.of(tokens) or self._steps.of(tokens)
        return max(0.0, known - self.alone(rows)) * math.exp2((self._verified - self._step) / _HALF)

    def _asked(self, rows: int) -> float:
        """By how much a step lasts longer because it tells what drafts are made of."""
        return max(0.0, self._asking.of(rows) - self._steps.of(rows))

    def _made(self, count: int) -> float:
        """Seconds that it takes to make so many drafts, at most; 0 while nothing is known of that."""
        return self._making.of(max(count, self._making.smallest))

    def least_chance(self, rows: int, most: int) -> float:
        """What a draft costs in tokens, where each row has ``most``: those that the step gives in the time that it
        takes to make and verify one.
        """
        alone = self.alone(rows)
        if not alone:
            return 0.0
        longer, made = self._longer(rows, most) / most, self._made(rows * most) / (rows * most)
        return (longer + made) * rows / alone

    def guess_pause(self, rows: int) -> int:
        """Steps from one with a guess for each of the rows to the next at least."""
        alone = self.alone(rows)
        return max(1, int((self._made(rows) + self._asked(rows)) / (_GUESSED * alone))) if alone else 1

    def best_count(self, rows: int, chances: Iterable[float]) -> int:
        """How many drafts, of descending chance, a step of so many rows should have."""
        alone = self.alone(rows)
        if not alone:  # this step tells
            return 0
        best, most, gained, longer = _WORTH * rows / alone, 0, float(rows), 0.0
        largest = max(2 * self._steps.largest, rows + _FIRST_TRIED)
        for count, chance in zip(range(1, largest - rows + 1), chances, strict=False):
            gained += chance
            longer = max(longer, self._longer(rows, count))
            rate = gained / (alone + longer)
            if rate > best:
                best, most = rate, count
        return most

    def pay(self, asked: Iterable[tuple[Drafting, int]], rows: int) -> bool:
        """Whether asking for so many drafts, in a step of so many rows, and verifying what there is gives more tokens
        in a second than steps without any.

        The first draft of a step may take longer than all others together, and there may be none where they are asked
        for: making takes time all the same.
        """
        alone = self.alone(rows)
        if not alone:  # this step tells
            return False
        wanted, none, drafts, right = 0, 1.0, 0.0, 0.0
        for drafting, count in asked:
            wanted += count
            none *= 1.0 - drafting.supply
            drafts += drafting.supply * count
            right += drafting.supply * drafting.expect(count)
        if none == 1.0:
            return False
        longer = self._longer(rows, max(1, round(drafts / (1.0 - none))))
        seconds = alone + (1.0 - none) * longer + none * self._asked(rows) + self._made(wanted)
        return (rows + right) * alone > _WORTH * rows * seconds
