"""A sample of requests, served on paper: the steps they would take, and what of them is padding."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lsv.capabilities import Padding
from lsv.platform import Traffic
from lsv.scheduler.budget import PaddedBudget
from lsv_hpu.buckets.table import DECODE, PROMPT, Buckets
from lsv_runtime.devices.shapes import BatchLimits, Shape


@dataclass(slots=True)
class Steps:
    """How often each unpadded shape came; ``tokens`` are those of prompts."""

    prompts: Counter[Shape]
    decodes: Counter[Shape]
    tokens: int = 0


@dataclass(slots=True)
class _Prompt:
    size: int
    output: int
    done: int = 0


def serve(traffic: Sequence[Traffic], limits: BatchLimits, padding: Padding) -> Steps:
    """All requests wait at the start; steps of prompts and of decoding rows take turns, as the scheduler's do."""
    waiting = deque(_Prompt(max(1, one.prompt), max(1, one.output)) for one in traffic)
    entered: deque[_Prompt] = deque()
    context = left = np.empty(0, np.int64)
    steps = Steps(Counter(), Counter())
    while waiting or entered or len(context):
        while waiting and len(context) + len(entered) < limits.max_rows:
            entered.append(waiting.popleft())
        ready = _take_prompts(entered, limits, padding, steps)
        context = np.concatenate((context, [prompt.size for prompt in ready])).astype(np.int64)
        left = np.concatenate((left, [prompt.output - 1 for prompt in ready])).astype(np.int64)
        context, left = context[left > 0], left[left > 0]
        if len(context):
            context, left = context + 1, left - 1
            blocks = int((-(-context // limits.block_size)).sum())
            steps.decodes[Shape(DECODE, len(context), 1, blocks)] += 1
    return steps


def _take_prompts(entered: deque[_Prompt], limits: BatchLimits, padding: Padding, steps: Steps) -> list[_Prompt]:
    """One step of prompts; those that are complete with it."""
    budget = PaddedBudget(limits.max_tokens, limits.max_tokens, padding, chunked=True)
    taken: list[tuple[_Prompt, int]] = []
    for prompt in entered:
        count = budget.chunk(prompt.size - prompt.done)
        if not count:
            break
        budget.spend(count)
        taken.append((prompt, count))
    if not taken:
        return []
    before = max(-(-prompt.done // limits.block_size) for prompt, _ in taken)
    steps.prompts[Shape(PROMPT, len(taken), max(count for _, count in taken), before)] += 1
    for prompt, count in taken:
        prompt.done += count
        steps.tokens += count
    done = [prompt for prompt, _ in taken if prompt.done == prompt.size]
    for prompt in done:
        entered.remove(prompt)
    return done


@dataclass(frozen=True, slots=True)
class Waste:
    """Shares of padding: of the tokens of prompts, of decoding rows, and of the cache blocks these read.

    ``unwarmed`` steps fit no bucket and are not counted in them.
    """

    prompts: float
    rows: float
    blocks: float
    unwarmed: int


def measure(steps: Steps, buckets: Buckets) -> Waste:
    padded = {shape: buckets.fit(shape) for shape in (*steps.prompts, *steps.decodes)}
    unwarmed = sum((steps.prompts + steps.decodes)[shape] for shape, found in padded.items() if found is None)
    tokens = sum(
        times * (found.rows * found.query if (found := padded[shape]) else shape.rows * shape.query)
        for shape, times in steps.prompts.items()
    )
    return Waste(
        prompts=_share(steps.tokens, tokens),
        rows=_padding(steps.decodes, padded, "rows"),
        blocks=_padding(steps.decodes, padded, "blocks"),
        unwarmed=unwarmed,
    )


def _padding(steps: Mapping[Shape, int], padded: Mapping[Shape, Shape | None], size: str) -> float:
    found = [(shape, fit, times) for shape, times in steps.items() if (fit := padded[shape]) is not None]
    needed = sum(times * getattr(shape, size) for shape, _, times in found)
    return _share(needed, sum(times * getattr(fit, size) for _, fit, times in found))


def _share(needed: int, padded: int) -> float:
    return 1 - needed / padded if padded else 0.0
