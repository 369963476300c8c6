"""What scheduling costs: milliseconds of plan + settle for a step, without any worker.

    python benchmarks/scheduler_cost.py [--rows 16,64,256,1024,4096] [--steps 128] [--seed 0]

First steps in which all requests decode. Then random populations: prompts and answers of random lengths, and for each
request that ends another one enters, so that steps hold all there is to plan. Last what prefix caching adds where
nothing is ever found: microseconds per token of such a population, and the share of a second in which a model computes
that many tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.scheduler.policy import Fcfs
from lsv.scheduler.scheduler import Scheduler

PROMPT = 64
BLOCK_SIZE = 32
WARM_UP = 192
"""Steps until a random population is as large as it may be and its requests are of all ages."""
TOKENS_PER_SECOND = 5000


class Timed(NamedTuple):
    """One step: milliseconds of its halves, and its tokens."""

    plan: float
    settle: float
    tokens: int

    @property
    def both(self) -> float:
        return self.plan + self.settle


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,64,256,1024,4096", help="numbers of running requests")
    parser.add_argument("--steps", type=int, default=128, help="steps measured for each")
    parser.add_argument("--seed", type=int, default=0, help="of the random populations")
    options = parser.parse_args(arguments)
    sizes = [int(rows) for rows in options.rows.split(",")]
    for title, measure in (("decoding", decoding), ("random", population)):
        print(f"{title:>9} {'plan ms':>9} {'settle ms':>10} {'both ms':>9} {'p99 ms':>8} {'us/row':>8} {'tokens':>8}")
        for rows in sizes:
            show(rows, measure(rows, options.steps, options.seed))
    show_caching(min(256, max(sizes)), options.steps, options.seed)


def show(rows: int, steps: list[Timed]) -> None:
    both = [step.both for step in steps]
    median = statistics.median(both)
    plan, settle = (statistics.median(part) for part in ([s.plan for s in steps], [s.settle for s in steps]))
    p99, tokens = statistics.quantiles(both, n=100)[98], statistics.mean(step.tokens for step in steps)
    print(
        f"{rows:>9} {plan:>9.3f} {settle:>10.3f} {median:>9.3f} {p99:>8.3f} {1000 * median / rows:>8.2f} {tokens:>8.0f}"
    )


def show_caching(rows: int, steps: int, seed: int) -> None:
    """The same population with and without prefix caching, by turns; the best of each counts."""
    costs = {True: [], False: []}
    for _ in range(5):
        for caching in costs:
            timed = population(rows, steps, seed, caching=caching)
            costs[caching].append(1000 * sum(step.both for step in timed) / sum(step.tokens for step in timed))
    added = min(costs[True]) - min(costs[False])
    print(
        f"prefix caching without a hit, {rows} rows: {min(costs[False]):.3f} + {added:.3f} us per token, "
        f"{100 * added * TOKENS_PER_SECOND / 1e6:.3f} % at {TOKENS_PER_SECOND} tokens a second"
    )


def decoding(rows: int, steps: int, seed: int) -> list[Timed]:
    """Steps in which ``rows`` requests decode, none of which ends."""
    scheduler = make_scheduler(rows, rows * (PROMPT + 2 * BLOCK_SIZE + steps + rows) // BLOCK_SIZE + 2 * rows)
    for number in range(rows):
        # Different lengths, so that rows do not all need their next block in the same step.
        scheduler.add(make_request(number, PROMPT + number % BLOCK_SIZE, None), 0.0)
    while step(scheduler).tokens != rows:
        pass
    return [step(scheduler) for _ in range(steps)]


def population(rows: int, steps: int, seed: int, *, caching: bool = True) -> list[Timed]:
    """Steps of up to ``rows`` requests that come, decode and end at different times; somebody always waits."""
    rng = random.Random(seed)
    scheduler = make_scheduler(rows, rows * 1024 // BLOCK_SIZE, caching=caching)
    added, timed = 0, []
    for number in range(WARM_UP + steps):
        while scheduler.counts.waiting < max(8, rows // 8):
            scheduler.add(make_request(added, rng.randint(8, 512), rng.randint(8, 256)), 0.0)
            added += 1
        one = step(scheduler)
        if number >= WARM_UP:
            timed.append(one)
    return timed


def make_scheduler(rows: int, blocks: int, *, caching: bool = True) -> Scheduler:
    kv = KVManager((KVGroup(0, "full", (0,), 1),), blocks, BLOCK_SIZE, root=b"benchmark", prefix_caching=caching)
    # A step of a population holds a token of each request and two of a newcomer's prompt for each.
    tokens, longest = max(2048, 4 * rows), 8192
    return Scheduler(Limits(max_num_seqs=rows, max_num_batched_tokens=tokens, max_model_len=longest), kv, Fcfs())


def make_request(number: int, size: int, answer: int | None) -> RequestGroup:
    prompt = tuple((number * 7919 + place) % 32_000 for place in range(size))
    sampling = SamplingParams(temperature=0.0, max_tokens=answer)
    spec = RequestSpec(prompts=(Prompt(prompt),), sampling=sampling, request_id=str(number))
    return RequestGroup(number, spec, arrival=float(number))


def step(scheduler: Scheduler) -> Timed:
    """One step with invented tokens."""
    began = time.perf_counter()
    plan = scheduler.plan(0.0)
    planned = time.perf_counter()
    assert plan is not None
    result = invent(plan)
    resumed = time.perf_counter()
    scheduler.settle(plan, result, 0.0)
    return Timed(1000 * (planned - began), 1000 * (time.perf_counter() - resumed), plan.tokens)


def invent(plan: StepPlan) -> StepResult:
    tokens = tuple((7,) if wants else () for wants in plan.rows.wants_logits)
    return StepResult(step=plan.step, seconds=0.0, tokens=tokens, kept=plan.rows.count)


if __name__ == "__main__":
    main()
