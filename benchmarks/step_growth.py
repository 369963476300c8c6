"""How the host's part of a decoding step grows with KV groups and with the longest context a request may have.

    python benchmarks/step_growth.py [--rows 256] [--steps 128]

First milliseconds of plan + settle, without any worker, for models of 1 to 48 KV groups. Then milliseconds of an
attention plan that is padded to the longest context, and the bytes it sends, for rows of 200 tokens: with block tables
that stay on the device, and with tables that each step brings along.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVSpec, group_specs
from lsv.request.params import SamplingParams
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepResult
from lsv.scheduler.policy import Fcfs
from lsv.scheduler.scheduler import Scheduler
from lsv_runtime.attention import BatchLayout
from lsv_runtime.attention import plan as attention_plan
from lsv_runtime.attention.tables import BlockTables
from lsv_testing.fakes.requests import make_request

BLOCK_SIZE = 16
PROMPT = 500
CONTEXT = 200
LAYERS = {
    "32 full": (32, 0),
    "10 full, 52 windowed": (10, 52),
    "3 full, 29 windowed": (3, 29),
    "1 full, 47 windowed": (1, 47),
}
LONGEST = (8192, 32768, 131072)


class Host:
    """Stands for a device: what is sent to it is counted, what it computes itself is not."""

    torch_device, pinned = torch.device("cpu"), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=128)
    options = parser.parse_args()
    print(f"{'layers':>22} {'groups':>7} {'mean ms':>8} {'median ms':>10} {'worst ms':>9}")
    for name, (full, windowed) in LAYERS.items():
        groups, spent = scheduling(full, windowed, options.rows, options.steps)
        mean, median = statistics.mean(spent), statistics.median(spent)
        print(f"{name:>22} {groups:>7} {mean:>8.3f} {median:>10.3f} {max(spent):>9.3f}")
    print(f"{'longest context':>22} {'stay: ms':>9} {'bytes':>9} {'sent: ms':>9} {'bytes':>9}")
    for longest in LONGEST:
        columns = (*planning(longest, options.rows, stay=True), *planning(longest, options.rows, stay=False))
        print(f"{longest:>22} {columns[0]:>9.3f} {columns[1]:>9} {columns[2]:>9.3f} {columns[3]:>9}")


def scheduling(full: int, windowed: int, rows: int, steps: int) -> tuple[int, list[float]]:
    """Groups, and milliseconds of plan + settle of each step."""
    specs = [KVSpec(layer, "full", 4096) for layer in range(full)]
    specs += [KVSpec(full + layer, "window", 4096, window=1024) for layer in range(windowed)]
    groups = group_specs(specs)
    blocks = len(groups) * rows * -(-(PROMPT + steps + rows) // BLOCK_SIZE)
    kv = KVManager(groups, blocks, BLOCK_SIZE, root=b"benchmark")
    limits = Limits(max_num_seqs=rows, max_num_batched_tokens=rows * (PROMPT + 16), max_model_len=8192)
    scheduler = Scheduler(limits, kv, Fcfs())
    for number in range(rows):
        prompt = tuple(range(number * 1000, number * 1000 + PROMPT + number % BLOCK_SIZE))
        scheduler.add(make_request(number, prompt, sampling=SamplingParams(max_tokens=None)), 0.0)
    step(scheduler)
    return len(groups), [step(scheduler) for _ in range(steps)]


def step(scheduler: Scheduler) -> float:
    began = time.perf_counter()
    plan = scheduler.plan(0.0)
    planned = time.perf_counter()
    assert plan is not None
    tokens = tuple((1,) if wants else () for wants in plan.rows.wants_logits)
    result = StepResult(step=plan.step, seconds=0.0, tokens=tokens, kept=plan.rows.count)
    resumed = time.perf_counter()
    scheduler.settle(plan, result, 0.0)
    return 1000 * (planned - began + time.perf_counter() - resumed)


def planning(longest: int, rows: int, *, stay: bool) -> tuple[float, int]:
    """Milliseconds of a plan that is refilled, and the bytes it sends; every 16th row has got a block."""
    used, blocks = -(-CONTEXT // BLOCK_SIZE), longest // BLOCK_SIZE
    tables = BlockTables(rows, blocks)
    for slot in range(rows):
        tables.extend(slot, range(1, used + 1))
    picked = tables.rows(np.arange(rows), used)
    table = picked if stay else np.asarray(picked)
    single, context = np.ones(rows, np.int32), np.full(rows, CONTEXT, np.int32)
    batch = BatchLayout(single, context, (table,), blocks=blocks)
    plan = attention_plan.make_plan(batch, table, BLOCK_SIZE, Host)
    sent = Sent()
    spent = []
    for number in range(16):
        for slot in range(number % 16, rows, 16):
            tables.extend(slot, (7,))
        spent.append(sent.time(lambda: attention_plan.make_plan(batch, table, BLOCK_SIZE, Host, plan)))
    return 1000 * statistics.median(spent), sent.bytes // len(spent)


class Sent:
    """Seconds of host work, without what a device would compute, and bytes that leave the host."""

    def __init__(self) -> None:
        self.bytes = 0

    def time(self, action: Callable[[], object]) -> float:
        pick, stage, aside = torch.index_select, torch.from_numpy, 0.0

        def picked(*arguments: object, **named: object) -> torch.Tensor:
            nonlocal aside
            began = time.perf_counter()
            try:
                return pick(*arguments, **named)
            finally:
                aside += time.perf_counter() - began

        def staged(array: np.ndarray) -> torch.Tensor:
            self.bytes += array.nbytes
            return stage(array)

        torch.index_select, torch.from_numpy = picked, staged
        try:
            began = time.perf_counter()
            action()
            return time.perf_counter() - began - aside
        finally:
            torch.index_select, torch.from_numpy = pick, stage


if __name__ == "__main__":
    main()
