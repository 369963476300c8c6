"""What drafts bring and cost in all, on a machine of made-up costs that is busy now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepPlan, StepResult
from lsv_testing.fakes import drafts as fake_drafts
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.slot import FakeSlot

TOKENS = 700


@dataclass(frozen=True)
class World:
    """Times in parts of what a step of one row takes."""

    rows: int
    chance: float
    """That a draft is right once those before it are."""
    supply: float
    """That there are drafts."""
    first: float
    """By how much longer a step with any drafts takes."""
    each: float
    """And for each of them."""
    making: float

    @property
    def alone(self) -> float:
        return 0.9 + 0.1 * self.rows

    def seconds(self, plan: StepPlan) -> tuple[float, float]:
        """Of a step, and of making drafts behind it."""
        drafts = sum(plan.rows.drafts)
        making = self.making * (0.7 + 0.3 * self.rows) if any(plan.rows.propose) else 0.0
        return self.alone + (self.first + self.each * drafts if drafts else 0.0), making


def gain(world: World, *, loaded: bool, seed: int) -> float:
    """Tokens in the time of one without drafts, from a cold start; ``loaded`` makes measurements wrong, not costs."""
    chance, load, spent = random.Random(seed), 0, 0.0

    def draft(slot: FakeSlot, most: int) -> Sequence[int]:
        if chance.random() >= world.supply:
            return ()
        good = next((place for place in range(most) if chance.random() >= world.chance), most)
        return [*fake_drafts.right(slot, good), *fake_drafts.wrong(slot, most)[good:]]

    def factor() -> float:
        nonlocal load
        load = load - 1 if load else chance.randint(5, 60) * (chance.random() < 0.01)
        return chance.gauss(1.0, 0.12) * (chance.uniform(1.2, 3.0) if load else 1.0) if loaded else 1.0

    limits = Limits(max_num_seqs=world.rows, max_num_batched_tokens=4096, max_model_len=800, drafts=5)
    rig = Rig(limits=limits, num_blocks=60 * world.rows, block_size=16, draft=draft)
    rig.scheduler.check = lambda: None
    collect = rig.worker.collect

    def timed(timeout: float) -> StepResult:
        nonlocal spent
        result = collect(timeout)
        step, making = world.seconds(rig.plans[result.step])
        spent += step + making
        wrong = max(0.1, factor())
        return msgspec.structs.replace(result, seconds=(step + making) * wrong, drafting=making * wrong)

    rig.worker.collect = timed
    for number in range(world.rows):
        rig.ask(number, range(5), max_tokens=TOKENS)
    rig.run()
    return TOKENS * world.alone / spent


LOSING = (
    World(rows=8, chance=0.33, supply=0.4, first=0.2, each=0.2, making=0.06),
    World(rows=8, chance=0.5, supply=1.0, first=0.2, each=0.2, making=0.2),
    World(rows=1, chance=0.33, supply=0.2, first=0.1, each=0.08, making=0.03),
    World(rows=1, chance=0.3, supply=1.0, first=0.1, each=0.08, making=0.2),
    World(rows=1, chance=0.7, supply=1.0, first=0.1, each=0.08, making=1.8),
)


@pytest.mark.parametrize("loaded", [False, True], ids=["quiet", "loaded"])
@pytest.mark.parametrize("world", LOSING, ids=str)
def test_drafts_that_cannot_pay_cost_little(world: World, loaded: bool) -> None:
    assert min(gain(world, loaded=loaded, seed=seed) for seed in range(2)) > 0.96


@pytest.mark.parametrize("loaded", [False, True], ids=["quiet", "loaded"])
def test_drafts_that_pay_are_not_given_up_by_what_else_a_machine_does(loaded: bool) -> None:
    world = World(rows=1, chance=0.75, supply=1.0, first=0.1, each=0.08, making=0.2)
    assert min(gain(world, loaded=loaded, seed=seed) for seed in range(3)) > 1.5
