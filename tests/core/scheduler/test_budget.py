"""Steps of prompts that are padded stay inside the forms that are ready."""

from __future__ import annotations

import random

import pytest

from lsv.capabilities import Padding
from lsv.scheduler.budget import PaddedBudget
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import Kind, StepPlan
from lsv_testing.fakes.rig import Rig

PADDING = Padding(rows=(1, 2, 4), queries=(8, 16, 32))


def budget(tokens: int = 32, *, chunked: bool = True) -> PaddedBudget:
    return PaddedBudget(tokens, tokens, PADDING, chunked=chunked)


def take(one: PaddedBudget, *wanted: int) -> list[int]:
    taken = []
    for tokens in wanted:
        count = one.chunk(tokens)
        if not count:
            break
        one.spend(count)
        taken.append(count)
    return taken


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ((5,), [5]),
        ((40,), [32]),  # a chunk fills the largest form
        ((5, 6, 7, 8, 1), [5, 6, 7, 8]),  # four rows of eight fill the step, a fifth has no form
        ((9, 9), [9, 9]),
        ((9, 9, 3), [9, 9]),  # a third row would make four of sixteen
        ((20, 3), [20]),  # two rows of 32 are too much
        ((3, 20), [3, 16]),  # cut where the form for two rows is full
    ],
)
def test_rows_count_as_much_as_the_longest(wanted: tuple[int, ...], taken: list[int]) -> None:
    assert take(budget(), *wanted) == taken


def test_whole_prompts_are_taken_or_left() -> None:
    assert take(budget(chunked=False), 3, 20) == [3]
    assert take(budget(chunked=False), 30) == [30]
    assert take(budget(1000, chunked=False), 300, 1) == [300], "what no form holds goes alone"


def test_a_small_step_still_moves() -> None:
    assert take(budget(4), 9) == [4]


def forms(plan: StepPlan) -> tuple[int, int]:
    """The padded form of a step of prompts."""
    rows, longest = len(plan.rows), max(plan.rows.count)
    return min(r for r in PADDING.rows if r >= rows), min(q for q in PADDING.queries if q >= longest)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 2])
def test_plans_of_random_requests_fit(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    limits = Limits(
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_model_len=128,
        mixed_batches=False,
        depth=depth,
        padding=PADDING,
    )
    rig = Rig(limits=limits, num_blocks=40)
    requests = [
        rig.ask(id, [rng.randrange(90) for _ in range(rng.randint(1, 70))], rng.randint(1, 9)) for id in range(30)
    ]
    rig.run()
    assert all(len(rig.tokens(request.id)) == len(request.output) > 0 for request in requests)
    prompts = [plan for plan in rig.plans if plan.kind is Kind.PREFILL]
    assert len(prompts) > 10
    assert all(rows * query <= 64 for rows, query in map(forms, prompts))
    assert {plan.kind for plan in rig.plans if plan.rows} == {Kind.PREFILL, Kind.DECODE}
