"""Stages beside each other feature, and every two features with stages: no answer changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, LoRARequest, SamplingParams, StructuredOutputsParams
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.attention_cases import cover_pairs
from lsv_testing.tiny import tiny

pytestmark = pytest.mark.usefixtures("ranks_are_threads")

LENGTH, TOKENS = 160, 16
PLAIN: dict[str, Any] = {
    "dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": 10, "block_size": 16, "max_num_batched_tokens": LENGTH,
    "enable_chunked_prefill": False, "enable_prefix_caching": False, "num_gpu_blocks_override": 64,
}  # fmt: skip
FEATURES: Mapping[str, dict[str, Any]] = {
    "chunking": {"enable_chunked_prefill": True, "max_num_batched_tokens": 24},
    "prefix": {"enable_prefix_caching": True},
    "preemption": {"num_gpu_blocks_override": 12},
    "weights": {"quantization": "asym_int4_g32"},
    "adapters": {"enable_lora": True, "max_loras": 1},
    "grammar": {},
}
CHANGES = ("weights", "adapters", "grammar")
"""Those that change answers by themselves."""
DRAFTERS = ("none", "ngram", "suffix", "draft_model")
STAGES = (2, 3)
SETS = tuple(
    (stages, drafter, tuple(name for name, on in zip(FEATURES, chosen, strict=True) if on))
    for stages, drafter, *chosen in cover_pairs([STAGES, DRAFTERS, *[(True, False)] * len(FEATURES)])
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters."""
    path = tmp_path_factory.mktemp("pairs")
    model = tiny("llama", path / "model", tokenizer=True, num_hidden_layers=3)
    modules = list(linear_layers(model))
    for number in (1, 2):
        write_adapter(path / f"adapter{number}", model, modules, seed=number, rank=2, spread=0.3)
    return path


def prompts() -> list[dict[str, Any]]:
    """Of ragged lengths; half of them share a beginning, and all repeat themselves."""
    rng = random.Random(3)
    shared = [rng.randrange(5, 250) for _ in range(34)]
    own = [[rng.randrange(5, 250) for _ in range(length)] * 2 for length in (1, 8, 3, 15, 20, 6, 11, 30)]
    return [{"prompt_token_ids": (shared if place % 2 else []) + ids} for place, ids in enumerate(own)]


def params(features: tuple[str, ...]) -> list[SamplingParams]:
    common: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}
    form = StructuredOutputsParams(regex="[a-f]{4,9}") if "grammar" in features else None
    return [
        SamplingParams(temperature=0.0, prompt_logprobs=1, **common),
        SamplingParams(temperature=0.0, logprobs=2, **common),
        SamplingParams(temperature=0.8, seed=5, n=2, top_p=0.9, **common),
        SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.2, **common),
        SamplingParams(temperature=0.0, max_tokens=3),
        SamplingParams(temperature=1.0, top_k=20, min_p=0.01, **common),
        SamplingParams(temperature=0.0, **common),
        SamplingParams(temperature=0.0, max_tokens=TOKENS, structured_outputs=form),
    ]


def ask(folder: Path, features: tuple[str, ...], **more: Any) -> tuple[list[Any], Any]:
    """What is said, the log probabilities of it by rounded values, and the engine's figures."""
    options = dict(PLAIN)
    for name in features:
        options |= FEATURES[name]
    lora = None
    if "adapters" in features:
        adapters = [LoRARequest(f"a{n}", n, str(folder / f"adapter{n}")) for n in (1, 2)]
        lora = [(None, *adapters)[place % 3] for place in range(8)]
    with LLM(str(folder / "model"), **options, **more) as llm:
        answers = [
            one.checked() for one in llm.generate(prompts(), params(features), use_tqdm=False, lora_request=lora)
        ]
        said = [tuple(tuple(output.token_ids) for output in one.outputs) for one in answers]
        likely = [answers[0].prompt_logprobs, answers[1].outputs[0].logprobs]
        return [*said, *map(rounded, likely)], llm.stats


def rounded(positions: Any) -> list[Any]:
    return [
        one and {token: pytest.approx(found.logprob, abs=1e-3) for token, found in one.items()} for one in positions
    ]


@cache
def plain(folder: Path, features: tuple[str, ...], ranks: int = 1) -> list[Any]:
    return ask(folder, features, tensor_parallel_size=ranks)[0]


def drafting(drafter: str, folder: Path) -> dict[str, Any]:
    named = {"model": str(folder / "model"), "quantization": "asym_int4_g32"} if drafter == "draft_model" else {}
    extra = {"prompt_lookup_min": 1} if drafter == "ngram" else {}
    config = {"method": drafter, "num_speculative_tokens": 3, "adaptive": False, **named, **extra}
    return {} if drafter == "none" else {"speculative_config": config}


def check(stages: int, drafter: str, features: tuple[str, ...], folder: Path, ranks: int = 1) -> None:
    """Coded weights round the sums of ranks otherwise, so answers are compared with those of as many ranks."""
    expected = plain(folder, tuple(name for name in features if name in CHANGES), ranks)
    placed = {"pipeline_parallel_size": stages, "tensor_parallel_size": ranks}
    found, stats = ask(folder, features, **placed, **drafting(drafter, folder))
    assert found == expected
    if drafter == "draft_model" or (drafter == "ngram" and "weights" not in features):
        assert stats.speculation.accepted > 0


@pytest.mark.row("F-280", "F-341", "F-563", "F-958")
@pytest.mark.parametrize(("stages", "drafter"), [(3, "none"), (3, "ngram"), (2, "draft_model")])
def test_all_features_beside_stages_change_no_token(stages: int, drafter: str, folder: Path) -> None:
    check(stages, drafter, tuple(FEATURES), folder)


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "drafter", "features"), SETS)
def test_some_features_beside_stages_change_no_token(
    stages: int, drafter: str, features: tuple[str, ...], folder: Path
) -> None:
    check(stages, drafter, features, folder)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("features", tuple(itertools.combinations(FEATURES, 2)), ids="+".join)
def test_every_pair_of_features_beside_stages_changes_no_token(
    features: tuple[str, ...], drafter: str, folder: Path
) -> None:
    check(2, drafter, features, folder)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_stages_of_two_ranks_change_no_token(feature: str, drafter: str, folder: Path) -> None:
    check(2, drafter, (feature,), folder, ranks=2)
