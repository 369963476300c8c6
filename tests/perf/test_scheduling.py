"""What plan and settle take for decoding rows, and that it grows in proportion to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.request.params import SamplingParams
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.scheduler.policy import Fcfs
from lsv.scheduler.scheduler import Scheduler
from lsv_testing.fakes.requests import GivenGroup, make_request

BLOCK_SIZE = 16
STEPS = BLOCK_SIZE
"""In that many steps every row gets exactly one block."""
SIZES = (1, 32, 256)
FEW, MORE, MANY = 64, 256, 1024


class Decoding:
    """A scheduler with requests of different lengths, all past their prompts."""

    def __init__(self, rows: int) -> None:
        longest = 8 * BLOCK_SIZE
        kv = KVManager((KVGroup(0, "full", (0,), 1),), rows * longest // BLOCK_SIZE, BLOCK_SIZE, root=b"test")
        limits = Limits(max_num_seqs=rows, max_num_batched_tokens=rows * longest, max_model_len=longest)
        self.scheduler = Scheduler(limits, kv, Fcfs())
        for number in range(rows):
            prompt = tuple(number * longest + place for place in range(2 * BLOCK_SIZE + number % BLOCK_SIZE))
            request = make_request(number, prompt, sampling=SamplingParams(temperature=0.0, max_tokens=None))
            self.scheduler.add(GivenGroup(request), 0.0)
        self.run(2)

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> StepPlan:
        plan = self.scheduler.plan(0.0)
        assert plan is not None
        tokens = tuple((7,) if wants else () for wants in plan.rows.wants_logits)
        self.scheduler.settle(plan, StepResult(step=plan.step, seconds=0.0, tokens=tokens, kept=plan.rows.count), 0.0)
        return plan


def test_calls_of_a_step(frozen, count_calls: Callable[..., int]) -> None:
    frozen.check({f"calls a step at {rows} rows": count_calls(Decoding(rows).run) / STEPS for rows in SIZES})


def test_memory_of_a_step(frozen, count_peak_bytes: Callable[..., int]) -> None:
    """Of one step in the middle of blocks; what it keeps and what it throws away."""
    counts = {}
    for rows in SIZES:
        step = Decoding(rows).step
        counts[f"KiB at {rows} rows"] = min(count_peak_bytes(step) for _ in range(4)) / 1024
    frozen.check(counts, tolerance=1.1)  # lists grow in leaps


@pytest.mark.parametrize("counter", ["count_calls", "count_peak_bytes"])
def test_work_grows_in_proportion_to_rows(counter: str, request: pytest.FixtureRequest) -> None:
    count = request.getfixturevalue(counter)
    least = {rows: min(count(Decoding(rows).run) for _ in range(3)) for rows in (FEW, MORE, MANY)}  # threads add theirs
    few, more, many = least[FEW], least[MORE], least[MANY]
    first, second = (more - few) / (MORE - FEW), (many - more) / (MANY - MORE)
    assert second <= 1.1 * first, f"a row costs {first:.1f} from {FEW} to {MORE} rows, but {second:.1f} up to {MANY}"
