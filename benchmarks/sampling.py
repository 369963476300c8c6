"""The sampler with and without native code, interleaved in one run: milliseconds of each, medians, and their ratio.

    python benchmarks/sampling.py [--vocabulary 151936] [--rows 1,16,32] [--repeats 7] [--threads 2]

``host`` is the native one with a vocabulary of one token: what Python takes, whatever the vocabulary.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from lsv.offers import load_object
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin
from lsv_cpu import plugin
from lsv_cpu.team import set_team
from lsv_runtime import ops as op_table
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.sampling.sampler import sample_rows
from lsv_runtime.worker.slots import Slot

CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "min-p": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


def native() -> Sampling:
    """The sampler's ops as this machine's platform binds them."""
    sampling = Sampling()
    op_table.bind(sampling, list(plugin.lsv_kernels()), "cpu", lambda offer: load_object(offer.load))
    return sampling


def make_slots(params: SamplingParams, rows: int, vocabulary: int) -> list[Slot]:
    """Requests with 500 tokens of text each."""
    texts = torch.randint(vocabulary, (rows, 500), generator=torch.Generator().manual_seed(0)).tolist()
    return [Slot(Begin(row, tuple(text), 100, params, seed=row), vocabulary) for row, text in enumerate(texts)]


def make_logits(rows: int, vocabulary: int) -> torch.Tensor:
    """bfloat16 [rows, vocabulary]: a bulk of unlikely tokens and a steep top, as models have them."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(rows, vocabulary, generator=generator) * 2
    steep = torch.randint(vocabulary, (rows, min(vocabulary, 60)), generator=generator)
    return logits.scatter_(1, steep, torch.linspace(18, 6, steep.shape[1]).expand(rows, -1)).bfloat16()


def alternate(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median milliseconds of each call over repeats in which they take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, mine in zip(calls, taken, strict=True):
            mine.append(best_of(call))
    return [statistics.median(mine) * 1e3 for mine in taken]


def best_of(call: Callable[[], object]) -> float:
    """Seconds of the fastest of two calls or more, until the other's threads have long stopped spinning."""
    seconds: list[float] = []
    until = time.perf_counter() + 0.03
    while len(seconds) < 2 or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rows", default="1,16,32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_team(arguments.threads, None)
    fast, plain = native(), Sampling()
    print(f"{'rows':>4} {'case':<14}{'plain ms':>10}{'native ms':>11}{'ratio':>8}{'host ms':>9}")
    for rows in map(int, arguments.rows.split(",")):
        logits, nothing = make_logits(rows, arguments.vocabulary), make_logits(rows, 1)
        for name, params in CASES.items():
            slots = make_slots(params, rows, arguments.vocabulary)
            both = [partial(sample_rows, logits, slots, ops) for ops in (plain, fast)]
            before, after = alternate(both, arguments.repeats)
            (host,) = alternate([partial(sample_rows, nothing, slots, fast)], arguments.repeats)
            print(f"{rows:>4} {name:<14}{before:>10.3f}{after:>11.3f}{before / after:>8.1f}{host:>9.3f}")


if __name__ == "__main__":
    main()
