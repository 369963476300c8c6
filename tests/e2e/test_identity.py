"""Every optimisation gives the tokens of the plain path, alone and in pairs, with quantised weights too, and those of
transformers.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import lsv_quant.plugin
from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

RARE = ("falcon", "cohere", "gptj", "opt")
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "gpt2", "bloom", *RARE)
LENGTH = 256
TOKENS = 60

# What each optimisation does to an engine. The plain path computes one whole prompt at a time, shares nothing
# and never runs out of blocks.
PLAIN = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 512,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
}
OPTIMISATIONS = {
    "batching": {"max_num_seqs": 16},
    "chunking": {"enable_chunked_prefill": True, "max_num_batched_tokens": 24},
    "prefix": {"enable_prefix_caching": True},
    "preemption": {"num_gpu_blocks_override": 18, "max_num_seqs": 16},
}
ON_CPU = os.environ.get("LSV_PLATFORM", "cpu") == "cpu"
"""Its kernels give a row the same bits in any batch; others' answers may part where two tokens are equally likely."""
ONLINE = tuple(offer.name for offer in lsv_quant.plugin.lsv_quantizers() if offer.online)
KERNELS = ("int8", "sym_int4", "asym_int4", "fp8")
"""One format for each way weights are multiplied."""
FORMATS = ONLINE if ON_CPU else KERNELS
"""Elsewhere all formats are multiplied in plain torch, in one of these ways."""
QUANTISED = [(name, family) for name in FORMATS for family in ("llama", "mixtral")
             if family == "mixtral" or not name.startswith("experts")]  # fmt: skip
"""Formats and the families that they quantise: some are for experts alone."""
IN_GROUPS = tuple(name for name in ONLINE if name.startswith(("asym_int4", "mxfp4", "nf4")))
"""Others quantise activations, or scale all inputs of an output alike, and do so by rank: sums of two ranks differ."""
TIE = 1e-4
"""Two tokens whose logits or log probabilities differ by less are equally likely."""
STEP = 0.2
"""The same where activations are rounded to 8 bits: one that is rounded the other way moves logits by up to this."""
PAIRS = [*((name,) for name in OPTIMISATIONS), *itertools.combinations(OPTIMISATIONS, 2), tuple(OPTIMISATIONS)]


def prompts() -> list[list[int]]:
    """Twelve prompts of ragged lengths; half of them share a prefix of 48 tokens."""
    rng = random.Random(3)
    shared = [rng.randrange(5, 250) for _ in range(48)]
    lengths = (1, 2, 15, 16, 17, 31, 33, 60, 64, 65, 90, 130)
    return [
        (shared if index % 2 else []) + [rng.randrange(5, 250) for _ in range(length)]
        for index, length in enumerate(lengths)
    ]


def run(checkpoint: str, *names: str, preempts: bool = True, **more: Any) -> list[tuple[int, ...]]:
    options = {**PLAIN, **more}
    for name in names:
        options.update(OPTIMISATIONS[name])
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    options |= {"dtype": "float32", "max_model_len": LENGTH, "block_size": 16, "skip_tokenizer_init": True}
    with LLM(checkpoint, **options) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
        if "preemption" in names and preempts:
            assert llm.stats.preemptions_total > 0, "the pool was not small enough to preempt anybody"
        if "prefix" in names:
            assert llm.stats.prefix_hits_total > 0
        return [answer.outputs[0].token_ids for answer in answers]


@cache
def run_plain(checkpoint: str, quantization: str | None) -> list[tuple[int, ...]]:
    """The plain path takes longest, and is what many tests compare with."""
    return run(checkpoint, quantization=quantization)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny("llama", tmp_path_factory.mktemp("identity") / "llama", max_position_embeddings=512))


@pytest.fixture(scope="module")
def plain(checkpoint: str) -> list[tuple[int, ...]]:
    return run(checkpoint)


@pytest.mark.row("F-356")
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_an_optimisation_changes_no_token(checkpoint: str, plain: list[tuple[int, ...]], names: tuple[str, ...]):
    check_alike(checkpoint, run(checkpoint, *names), plain)


@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f in RARE)) for f in FAMILIES])
def test_all_optimisations_together_match_transformers(family: str, tmp_path):
    path = tiny(family, tmp_path / family, max_position_embeddings=512)
    answers = run(str(path), *OPTIMISATIONS, preempts=family != "mistral")  # its windows let blocks go in time
    check_against_transformers(path, answers)


@pytest.mark.row("F-006", "F-564")
@pytest.mark.two_ranks
def test_two_ranks_match_transformers(tmp_path):
    path = tiny("llama", tmp_path / "llama", max_position_embeddings=512)
    check_against_transformers(path, run(str(path), "batching", "chunking", tensor_parallel_size=2))


@pytest.mark.row("F-280", "F-341")
@pytest.mark.two_ranks
def test_stages_give_the_same_tokens(checkpoint: str, plain: list[tuple[int, ...]]):
    check_alike(checkpoint, run(checkpoint, *OPTIMISATIONS, pipeline_parallel_size=2), plain)


def check_against_transformers(path: Path, answers: list[tuple[int, ...]]) -> None:
    """Greedy tokens equal; where they part, the reference's two best logits must tie within 1e-4, and rarely."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ties = 0
    for prompt, answer in zip(prompts(), answers, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        for position, token in enumerate(answer):
            if token != int(logits[position].argmax()):
                assert float(logits[position].max() - logits[position][token]) < TIE, f"position {position} is no tie"
                ties += 1
    print(f"{path.name}: {ties} ties")
    assert ties <= 0.02 * 12 * TOKENS


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models wide enough for groups of 128 inputs on each of two ranks."""
    folder = tmp_path_factory.mktemp("quantised")
    shape = {"max_position_embeddings": 512, "hidden_size": 256, "intermediate_size": 512}
    return {family: str(tiny(family, folder / family, **shape)) for family in ("llama", "mixtral")}


@pytest.mark.parametrize("name", KERNELS)
def test_optimisations_change_no_token_of_quantised_experts(name: str, checkpoints: dict[str, str]) -> None:
    quantised = run_plain(checkpoints["mixtral"], name)
    found = run(checkpoints["mixtral"], *OPTIMISATIONS, quantization=name)
    check_alike(checkpoints["mixtral"], found, quantised, quantization=name)
    assert quantised != run_plain(checkpoints["mixtral"], None)


@pytest.mark.slow
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize(("name", "family"), QUANTISED, ids="-".join)
def test_an_optimisation_changes_no_token_of_any_format(
    name: str, family: str, names: tuple[str, ...], checkpoints: dict[str, str]
) -> None:
    found = run(checkpoints[family], *names, quantization=name)
    check_alike(checkpoints[family], found, run_plain(checkpoints[family], name), quantization=name)


@pytest.mark.two_ranks
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "mxfp4")) for n in IN_GROUPS])
def test_two_ranks_of_a_quantised_model_match_one(name: str, checkpoints: dict[str, str]) -> None:
    for one, two in zip(*(scored(checkpoints["llama"], name, ranks) for ranks in (1, 2)), strict=True):
        parting = next((at for at in range(TOKENS) if one[at][0] != two[at][0]), None)
        assert parting is None or one[parting][1] < TIE, f"position {parting} is no tie"


def check_alike(
    checkpoint: str, found: list[tuple[int, ...]], plain: list[tuple[int, ...]], quantization: str | None = None
) -> None:
    """Equal to the last token; where kernels allow less, up to a tie of the plain path."""
    if ON_CPU or found == plain:
        assert found == plain
        return
    tie = TIE if quantization in (None, *IN_GROUPS) else STEP
    for one, two, margins in zip(plain, found, scored(checkpoint, quantization, 1, **PLAIN), strict=True):
        parting = next((at for at in range(TOKENS) if one[at] != two[at]), None)
        assert parting is None or margins[parting][1] < tie, f"position {parting} is no tie"


def scored(checkpoint: str, quantization: str | None, ranks: int, **more: Any) -> list[list[tuple[int, float]]]:
    """Each answer's tokens, and how much likelier each was than the next best."""
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=2)
    options = {"dtype": "float32", "max_model_len": LENGTH, "skip_tokenizer_init": True, **more}
    with LLM(checkpoint, quantization=quantization, tensor_parallel_size=ranks, **options) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
    return [
        [(token, margin(entries)) for token, entries in zip(output.token_ids, output.logprobs, strict=True)]
        for output in (answer.outputs[0] for answer in answers)
    ]


def margin(entries: Mapping[int, Any]) -> float:
    """Between the two likeliest of ``entries``."""
    best, second, *_ = sorted((entry.logprob for entry in entries.values()), reverse=True)
    return float(best - second)
