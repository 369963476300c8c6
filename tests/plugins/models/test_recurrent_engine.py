"""An engine on a recurrent model gives the tokens of the plain path, however it cuts steps and shares blocks."""

import random
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

TOKENS = 80
PLAIN = {
    "platform": "cpu", "emulate": False, "max_num_seqs": 1, "max_num_batched_tokens": 512,
    "enable_chunked_prefill": False, "enable_prefix_caching": False,
}  # fmt: skip
CHUNKED = {"max_num_seqs": 8, "enable_chunked_prefill": True, "max_num_batched_tokens": 24}
ENGINES = {
    "mixed": CHUNKED,
    "prefixes": {"enable_prefix_caching": True},
    "preempted": {**CHUNKED, "enable_prefix_caching": True},
    "steps ahead": {**CHUNKED, "platform": "xpu", "emulate": True, "async_scheduling": True},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16},
}
FEW_BLOCKS = {"mamba2": 8, "lfm2": 24}
"""Hardly more than one request of full length needs. A state takes no more as its request grows, so who has nothing
else is admitted only where there is room for good."""


def prompts() -> list[list[int]]:
    """Ragged ones, half of which share a prefix of 48 tokens, and one twice."""
    rng = random.Random(3)
    shared = [rng.randrange(5, 250) for _ in range(48)]
    found = [
        (shared if index % 2 else []) + [rng.randrange(5, 250) for _ in range(length)]
        for index, length in enumerate((1, 2, 16, 17, 31, 33, 60, 65))
    ]
    return [*found, found[-1]]


def run(path: Path, *, n: int = 1, **more: Any) -> tuple[list[tuple[int, ...]], Any]:
    chosen = {"temperature": 0.0} if n == 1 else {"n": n, "temperature": 1.0, "seed": 7}
    params = SamplingParams(**chosen, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    options = {"dtype": "float32", "max_model_len": 256, "block_size": 16, "skip_tokenizer_init": True}
    with LLM(str(path), **{**PLAIN, **options, **more}) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
        return [output.token_ids for answer in answers for output in answer.outputs], llm.stats


@pytest.fixture(scope="module", params=[pytest.param("mamba2", marks=pytest.mark.slow), "lfm2"])
def family(request, tmp_path_factory) -> tuple[Path, list[tuple[int, ...]]]:
    """A checkpoint, and its answers by the plain path."""
    path = tiny(request.param, tmp_path_factory.mktemp("recurrent") / request.param, **FAMILIES[request.param])
    return path, run(path)[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_gives_the_plain_tokens(engine, family):
    path, plain = family
    blocks = {"num_gpu_blocks_override": FEW_BLOCKS[path.name]} if engine == "preempted" else {}
    answers, stats = run(path, **ENGINES[engine], **blocks)
    assert answers == plain
    if engine == "prefixes":
        assert stats.prefix_hits_total >= 48, "no checkpoint was found"
    if engine == "preempted" and path.name != "mamba2":
        assert stats.preemptions_total > 0, "the pool was not small enough to preempt anybody"


def test_sequences_of_a_prompt_go_on_from_its_checkpoint(family):
    path, _ = family
    plain, _ = run(path, n=2)
    answers, stats = run(path, n=2, max_num_seqs=8, enable_prefix_caching=True)
    assert answers == plain
    assert len(set(plain)) > len(prompts()), "the sequences of a prompt are alike"
    assert stats.prefix_hits_total > 0


def test_drafts_change_no_token_where_requests_are_preempted(family):
    path, plain = family
    drafting = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
    blocks = FEW_BLOCKS[path.name]
    answers, stats = run(path, **ENGINES["preempted"], num_gpu_blocks_override=blocks, speculative_config=drafting)
    assert answers == plain
    if path.name != "mamba2":
        assert stats.preemptions_total > 0, "the pool was not small enough to preempt anybody"
        assert 0 < stats.speculation.accepted < stats.speculation.drafts
