"""One engine in this process: how long a batch takes, and how many tokens a second it yields."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lsv.bench.datasets import Sample
from lsv.bench.report import Figures, spread
from lsv.request import SamplingParams

if TYPE_CHECKING:
    from lsv.llm import LLM

Prompt = dict[str, list[int]] | str


def measure_latency(
    llm: LLM, samples: Sequence[Sample], *, warmup: int, rounds: int, done: Callable[[], None]
) -> Figures:
    """Run the same batch ``rounds`` times after ``warmup`` unmeasured ones."""
    seconds = []
    for number in range(warmup + rounds):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        _generate(llm, samples)
        if number >= warmup:
            seconds.append(time.perf_counter() - began)
        done()
    tokens = sum(sample.output_len for sample in samples)
    mean = sum(seconds) / len(seconds)
    return {
        "batch_size": len(samples),
        "rounds": rounds,
        **spread("latency", seconds),
        "output_tokens_per_s": tokens / mean,
    }


def measure_throughput(llm: LLM, samples: Sequence[Sample]) -> Figures:
    """Hand over all samples at once and wait for the last."""
    began = time.perf_counter()
    inputs, outputs = _generate(llm, samples)
    seconds = time.perf_counter() - began
    return {
        "requests": len(samples),
        "seconds": seconds,
        "requests_per_s": len(samples) / seconds,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "output_tokens_per_s": outputs / seconds,
        "total_tokens_per_s": (inputs + outputs) / seconds,
    }


def _generate(llm: LLM, samples: Sequence[Sample]) -> tuple[int, int]:
    """Greedy, to full length. Returns the number of prompt and of generated tokens."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=s.output_len, ignore_eos=True, detokenize=False) for s in samples
    ]
    answers = llm.generate([_prompt(s) for s in samples], params, use_tqdm=False)
    return sum(len(a.prompt_token_ids) for a in answers), sum(len(a.outputs[0].token_ids) for a in answers)


def _prompt(sample: Sample) -> Prompt:
    return sample.prompt if isinstance(sample.prompt, str) else {"prompt_token_ids": list(sample.prompt)}
