"""One engine in this process: how long a batch takes, and how many tokens a second it yields."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lsv.request.outputs import RequestOutput
from lsv.request.params import SamplingParams
from lsv_bench.datasets import Sample
from lsv_bench.figures import Figures, spread

if TYPE_CHECKING:
    from lsv import LLM
    from lsv.text.prompts import PromptInput


class Batch(msgspec.Struct, frozen=True):
    """How one batch went, in seconds from its start: each request's first token, and the end of all.

    ``early`` of the ``output_tokens`` were there when the last request got its first token.
    """

    ttft: Sequence[float]
    seconds: float
    input_tokens: int
    output_tokens: int
    early: int


def measure_latency(
    llm: LLM,
    samples: Sequence[Sample],
    *,
    warmup: int,
    rounds: int,
    percents: Sequence[float] = (50, 90, 99),
    done: Callable[[], None],
) -> Figures:
    """Run the same batch ``rounds`` times, with an empty prefix cache, after ``warmup`` unmeasured ones."""
    batches = []
    for number in range(warmup + rounds):
        llm.reset_prefix_cache()
        batch = run_batch(llm, samples)
        if number >= warmup:
            batches.append(batch)
        done()
    return summarise(batches, percents)


def summarise(batches: Sequence[Batch], percents: Sequence[float] = (50, 90, 99)) -> Figures:
    """Latencies over all rounds. ``prefill`` is the time to the last first token, ``decode`` everything after it."""
    prefill = sum(max(batch.ttft) for batch in batches)
    total = sum(batch.seconds for batch in batches)
    outputs = sum(batch.output_tokens for batch in batches)
    later = outputs - sum(batch.early for batch in batches)
    figures: Figures = {
        "batch_size": len(batches[0].ttft),
        "rounds": len(batches),
        "input_tokens": batches[0].input_tokens,
        "output_tokens": batches[0].output_tokens,
        "output_tokens_per_s": outputs / total,
        "prefill_tokens_per_s": sum(batch.input_tokens for batch in batches) / prefill,
    }
    if later:
        figures["decode_tokens_per_s"] = later / (total - prefill)
    figures.update(spread("latency", [batch.seconds for batch in batches], percents))
    figures.update(spread("ttft", [one for batch in batches for one in batch.ttft], percents))
    return figures


def measure_throughput(llm: LLM, samples: Sequence[Sample]) -> Figures:
    """Hand over all samples at once and wait for the last."""
    prompts, params = [_prompt(llm, sample) for sample in samples], [_params(sample) for sample in samples]
    llm.reset_prefix_cache()
    began = time.perf_counter()
    answers = [answer.checked() for answer in llm.generate(prompts, params, use_tqdm=False)]
    seconds = time.perf_counter() - began
    return rates(list(map(count, answers)), seconds)


class Counts(NamedTuple):
    """Tokens of an answer."""

    input: int
    cached: int
    output: int


def answer_batch(llm: LLM, samples: Sequence[Sample]) -> list[Counts]:
    """Answer samples beside each other, greedily and in full length, with what is in the prefix cache."""
    prompts, params = [_prompt(llm, sample) for sample in samples], [_params(sample) for sample in samples]
    return [count(answer.checked()) for answer in llm.generate(prompts, params, use_tqdm=False)]


def count(answer: RequestOutput) -> Counts:
    return Counts(len(answer.prompt_token_ids), answer.num_cached_tokens, len(answer.outputs[0].token_ids))


def rates(answers: Sequence[Counts], seconds: float) -> Figures:
    """What answers come to that took so long all together."""
    inputs, cached, outputs = (sum(column) for column in zip(*answers, strict=True))
    return {
        "requests": len(answers),
        "seconds": seconds,
        "requests_per_s": len(answers) / seconds,
        "input_tokens": inputs,
        "cached_tokens": cached,
        "output_tokens": outputs,
        "output_tokens_per_s": outputs / seconds,
        "total_tokens_per_s": (inputs + outputs) / seconds,
    }


def run_batch(llm: LLM, samples: Sequence[Sample]) -> Batch:
    """Step the engine by hand until all samples are answered in full length, greedily."""
    engine = llm.llm_engine
    prompts, params = [_prompt(llm, sample) for sample in samples], [_params(sample) for sample in samples]
    names = [f"bench-{index}" for index in range(len(samples))]
    first: dict[str, float] = {}
    seen: dict[str, RequestOutput] = {}
    began = time.perf_counter()
    try:
        for name, prompt, one in zip(names, prompts, params, strict=True):
            engine.add_request(name, prompt, one)
        while len(first) < len(names):
            outputs = [output.checked() for output in engine.step() if isinstance(output, RequestOutput)]
            now = time.perf_counter() - began
            for output in outputs:
                seen[output.request_id] = output
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, now)
        early = sum(len(output.outputs[0].token_ids) for output in seen.values())
        # from here on nobody looks at partial answers, so none are made
        while engine.has_unfinished_requests():
            for answer in engine.step(finished_only=True):
                if isinstance(answer, RequestOutput):
                    seen[answer.request_id] = answer.checked()
        seconds = time.perf_counter() - began
    finally:
        engine.abort_request(names)
    return Batch(
        [first[name] for name in names],
        seconds,
        sum(len(output.prompt_token_ids) for output in seen.values()),
        sum(len(output.outputs[0].token_ids) for output in seen.values()),
        early,
    )


def _params(sample: Sample) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=sample.output_len, ignore_eos=True, detokenize=False)


def _prompt(llm: LLM, sample: Sample) -> PromptInput:
    """What the engine is given: token ids, so that no tokenizer runs while it is timed, and the media of conversations,
    whose decoding is timed.
    """
    if isinstance(sample.prompt, tuple):
        return {"prompt_token_ids": sample.prompt}
    if isinstance(sample.prompt, str):
        return {"prompt_token_ids": llm.get_tokenizer().encode(sample.prompt)}
    return llm.read_chat(sample.prompt.messages)
