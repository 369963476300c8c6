"""What a platform does to go faster changes no token, alone and with all the others; proved on emulated devices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.attention import cover_pairs
from lsv_testing.tiny import tiny

LENGTH, TOKENS, BLOCK = 128, 24, 16
TIE = 1e-4

PLATFORMS: dict[str, dict[str, Any]] = {
    "cuda": {"cuda.graph_rows": 8},
    "rocm": {"cuda.graph_rows": 8},
    "xpu": {},
    "hpu": {},
    "torch": {},
    "cpu": {},
}
"""The platforms with an emulation, and settings that keep their warm-up short."""

DAILY_PLATFORMS = tuple(name for name in PLATFORMS if name not in ("rocm", "cpu"))
"""rocm is cuda's code by another name; kernels for cpu's emulated instructions take a minute or two to compile."""

SINGLE = ("torch",)
"""Those that compute on one device."""

PLAIN = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": LENGTH,
    "enforce_eager": True,
    "async_scheduling": False,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
}
FEATURES: dict[str, dict[str, Any]] = {
    "batching": {"max_num_seqs": 8},
    "graphs": {"enforce_eager": False},
    "chunking": {"enable_chunked_prefill": True, "max_num_batched_tokens": 32},
    "prefix": {"enable_prefix_caching": True},
    "async": {"async_scheduling": None},
    "quantised": {"quantization": "asym_int4_g32"},
    "drafts": {"speculative_config": {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False}},
    "two ranks": {"tensor_parallel_size": 2},
}
PAIRS = tuple(
    tuple(name for name, on in zip(FEATURES, chosen, strict=True) if on)
    for chosen in cover_pairs([(True, False)] * len(FEATURES))
)
"""Few sets of features in which every two of them are on together, and each is on without each other one."""
DAILY = {
    (platform, features)
    for at, platform in enumerate(DAILY_PLATFORMS)
    for place, features in enumerate(PAIRS)
    if len(features) == len(FEATURES) or at == place % (len(DAILY_PLATFORMS) - ("two ranks" in features))
}
"""What the fast tests run: each set on one platform, where ranks are processes if it has two, and all features together
on each.
"""


def prompts() -> list[list[int]]:
    """Eight prompts of ragged lengths; half of them share a beginning of two blocks."""
    rng = random.Random(5)
    shared = [rng.randrange(5, 250) for _ in range(2 * BLOCK)]
    return [
        (shared if index % 2 else []) + [rng.randrange(5, 250) for _ in range(length)]
        for index, length in enumerate((1, 3, 15, 16, 17, 31, 40, 60))
    ]


Scored = list[list[tuple[int, float]]]
"""Of each answer its tokens, and by how much each was likelier than the next best."""


def run(checkpoint: str, platform: str, *features: str, **more: Any) -> Scored:
    """The answers of an emulated platform with these features."""
    options: dict[str, Any] = {**PLAIN, **PLATFORMS[platform], "platform": platform, "emulate": True, **more}
    for name in features:
        if name == "two ranks" and platform in SINGLE:
            continue
        options.update(FEATURES[name])
    return ask(checkpoint, options)


def ask(checkpoint: str, options: dict[str, Any]) -> Scored:
    options = options | {"dtype": "float32", "max_model_len": LENGTH, "skip_tokenizer_init": True}
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=2)
    with LLM(checkpoint, **options) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
        assert llm.stats.unwarmed_total == 0
    return [
        [(token, margin(entries)) for token, entries in zip(output.token_ids, output.logprobs, strict=True)]
        for output in (answer.outputs[0] for answer in answers)
    ]


def margin(entries: Mapping[int, Any]) -> float:
    """Between the two likeliest of ``entries``."""
    best, second, *_ = sorted((entry.logprob for entry in entries.values()), reverse=True)
    return float(best - second)


def check_same(found: Scored, plain: Scored) -> None:
    """Equal up to where the plain path's two best tokens tie, which is rare."""
    ties = 0
    for answer, expected in zip(found, plain, strict=True):
        parting = next((at for at in range(TOKENS) if answer[at][0] != expected[at][0]), None)
        if parting is not None:
            assert expected[parting][1] < TIE, f"position {parting} of an answer is no tie"
            ties += 1
    assert ties <= 0.02 * len(plain) * TOKENS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("platforms") / "llama"
    return str(tiny("llama", folder, max_position_embeddings=512, hidden_size=128, intermediate_size=256))


@pytest.fixture(scope="module")
def plain(checkpoint: str) -> dict[bool, Scored]:
    """The plain path on the cpu platform, in plain torch; by whether the weights are quantised."""
    options = {**PLAIN, "platform": "cpu", "emulate": False}
    options |= {"reference_ops": True, "attention_backend": "torch-paged"}
    return {False: ask(checkpoint, options), True: ask(checkpoint, options | FEATURES["quantised"])}


@pytest.mark.row("F-358", "F-470", "F-584")
@pytest.mark.row("F-367")
@pytest.mark.parametrize(
    ("platform", "features"),
    [
        pytest.param(*case, marks=() if case in DAILY else pytest.mark.slow, id="-".join((case[0], "+".join(case[1]))))
        for case in itertools.product(PLATFORMS, PAIRS)
    ],
)
def test_features_of_a_platform_change_no_token(
    platform: str, features: tuple[str, ...], checkpoint: str, plain: dict[bool, Scored]
) -> None:
    check_same(run(checkpoint, platform, *features), plain["quantised" in features])


@pytest.mark.row("F-464", "F-470", "F-568")
@pytest.mark.parametrize("platform", ["xpu", pytest.param("hpu", marks=pytest.mark.slow)])
def test_stages_of_a_platform_change_no_token(platform: str, checkpoint: str, plain: dict[bool, Scored]) -> None:
    check_same(run(checkpoint, platform, "batching", pipeline_parallel_size=2), plain[False])


@pytest.mark.slow
@pytest.mark.parametrize("features", tuple(itertools.combinations(FEATURES, 2)), ids="+".join)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_pair_of_features_changes_no_token(
    platform: str, features: tuple[str, ...], checkpoint: str, plain: dict[bool, Scored]
) -> None:
    check_same(run(checkpoint, platform, *features), plain["quantised" in features])
