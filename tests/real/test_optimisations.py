"""What makes a server faster changes no answer: each alone, and in pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lsv import LLM
from published.checks import ask, find_differences
from published.golden import Golden, read_golden
from published.models import Published

NAMES = ("chat 0", "conversation", "japanese", "emoji", "counting", "python", "story", "short document")
OPTIONS: dict[str, dict[str, Any]] = {
    "ngram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}},
    "draft": {"speculative_config": {"model": "the GGUF file", "num_speculative_tokens": 3}},
    "preemption": {"num_gpu_blocks_override": 16, "max_model_len": 480},
    "chunks": {"max_num_batched_tokens": 48, "max_num_seqs": 8},
    "no prefixes": {"enable_prefix_caching": False},
}
PAIRS = [pair for pair in itertools.combinations(OPTIONS, 2) if pair != ("ngram", "draft")]


@pytest.fixture(scope="module")
def golden() -> Golden:
    golden = read_golden("smollm2")
    golden.answers = [answer for answer in golden.answers if answer.name in NAMES]
    return golden


@pytest.mark.parametrize("names", [*((name,) for name in OPTIONS), *PAIRS], ids=" and ".join)
def test_an_optimisation_changes_no_answer(published: Published, golden: Golden, names: tuple[str, ...]) -> None:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "cpu_kvcache_space": 1}
    for name in names:
        options |= OPTIONS[name]
    if "draft" in names:
        options["speculative_config"] = {**options["speculative_config"], "model": str(published.smollm2())}
    with LLM(str(published.plain_smollm2()), **options) as llm:
        assert list(find_differences(golden.answers, ask(llm, golden.answers))) == []


def test_a_cached_prefix_changes_no_answer(published: Published) -> None:
    """The second time all whole blocks of a prompt come from the cache."""
    answers = [answer for answer in read_golden("smollm2").answers if answer.name == "document"]
    with LLM(str(published.smollm2()), dtype="float32", max_model_len=1024, cpu_kvcache_space=1) as llm:
        for least in (0, 600):
            outputs = ask(llm, answers)
            assert (outputs[0].num_cached_tokens or 0) >= least
            assert list(find_differences(answers, outputs)) == []


def test_a_batch_changes_no_bit(published: Published) -> None:
    """In bfloat16, as it is served: a prompt alone, and the same among all others."""
    answers = read_golden("smollm2").answers
    with LLM(str(published.smollm2()), max_model_len=2048, cpu_kvcache_space=1, enable_prefix_caching=False) as llm:
        together = ask(llm, answers)
        for answer, output in zip(answers[::5], together[::5], strict=True):
            (alone,) = ask(llm, [answer])
            assert alone.outputs[0].token_ids == output.outputs[0].token_ids
            assert alone.outputs[0].logprobs == output.outputs[0].logprobs
