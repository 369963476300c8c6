"""What scheduling costs: milliseconds of plan + settle for a step of decoding rows, without any worker.

python benchmarks/scheduler_cost.py --rows 16,64,256,1024,4096
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.request import Request, SamplingParams
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.scheduler.policy import Fcfs
from lsv.scheduler.scheduler import Scheduler

PROMPT = 64
BLOCK_SIZE = 16


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,64,256,1024,4096", help="numbers of decoding requests")
    parser.add_argument("--steps", type=int, default=256, help="steps measured for each")
    parser.add_argument("--waiting", type=int, default=0, help="requests that wait behind the running ones")
    options = parser.parse_args(arguments)
    print(f"{'rows':>6} {'plan ms':>9} {'settle ms':>10} {'both ms':>9} {'p99 ms':>8} {'us/row':>8}")
    for rows in map(int, options.rows.split(",")):
        plan, settle = measure(rows, options.steps, options.waiting)
        both = [one + other for one, other in zip(plan, settle, strict=True)]
        median = statistics.median(both)
        p99 = statistics.quantiles(both, n=100)[98]
        print(
            f"{rows:>6} {statistics.median(plan):>9.3f} {statistics.median(settle):>10.3f} {median:>9.3f} "
            f"{p99:>8.3f} {1000 * median / rows:>8.2f}"
        )


def measure(rows: int, steps: int, waiting: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each plan and each settle while ``rows`` requests decode ``steps`` tokens."""
    scheduler = make_scheduler(rows, steps)
    for number in range(rows + waiting):
        # Different lengths, so that rows do not all need their next block in the same step.
        size = PROMPT + number % BLOCK_SIZE
        prompt = tuple((number * 7919 + place) % 32_000 for place in range(size))
        sampling = SamplingParams(temperature=0.0, max_tokens=None)
        scheduler.add(Request(number, prompt, sampling=sampling, arrival=float(number)), 0.0)
    while not is_decoding(step(scheduler)[0], rows):
        pass
    timed = [step(scheduler)[1:] for _ in range(steps)]
    return [plan for plan, _ in timed], [settle for _, settle in timed]


def make_scheduler(rows: int, steps: int) -> Scheduler:
    longest = PROMPT + 2 * BLOCK_SIZE + steps + rows
    blocks = rows * (longest // BLOCK_SIZE + 2)
    kv = KVManager((KVGroup(0, "full", (0,), 1),), blocks, BLOCK_SIZE, root=b"benchmark")
    tokens = max(8192, 2 * rows)
    return Scheduler(Limits(max_num_seqs=rows, max_num_batched_tokens=tokens, max_model_len=longest), kv, Fcfs())


def is_decoding(plan: StepPlan, rows: int) -> bool:
    return len(plan.rows) == rows and plan.tokens == rows


def step(scheduler: Scheduler) -> tuple[StepPlan, float, float]:
    """One step with invented tokens, and the milliseconds its two halves took."""
    began = time.perf_counter()
    plan = scheduler.plan(0.0)
    planned = time.perf_counter()
    assert plan is not None
    tokens = tuple((7,) if wants else () for wants in plan.rows.wants_logits)
    result = StepResult(step=plan.step, seconds=0.0, tokens=tokens, kept=plan.rows.count)
    resumed = time.perf_counter()
    scheduler.settle(plan, result, 0.0)
    return plan, 1000 * (planned - began), 1000 * (time.perf_counter() - resumed)


if __name__ == "__main__":
    main()
