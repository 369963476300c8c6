"""Each drafter beside each feature, and every two features with drafts: no answer changes."""

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
from lsv_testing.fakes.eagle import write_eagle, write_eagle3
from lsv_testing.fakes.medusa import write_medusa
from lsv_testing.fakes.speculator import write_speculator
from lsv_testing.tiny import tiny

from .conftest import EIGHT_BITS

LENGTH, TOKENS = 160, 20
PLAIN: dict[str, Any] = {
    "dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": 1, "block_size": 16, "max_num_batched_tokens": LENGTH,
    "enable_chunked_prefill": False, "enable_prefix_caching": False,
}  # fmt: skip
FEATURES: Mapping[str, dict[str, Any]] = {
    "batching": {"max_num_seqs": 8},
    "chunking": {"enable_chunked_prefill": True, "max_num_batched_tokens": 24},
    "prefix": {"enable_prefix_caching": True},
    "preemption": {"num_gpu_blocks_override": 11},
    "weights": {"quantization": "int8"},
    "cache": {"kv_cache_dtype": EIGHT_BITS},
    "async": {},
    "adapters": {"enable_lora": True, "max_loras": 2},
    "grammar": {},
}
CHANGES = ("weights", "cache", "adapters", "grammar")
"""Those that change answers by themselves."""
HEADS = ("mlp_speculator", "medusa", "eagle", "eagle3")
DRAFTERS = ("ngram", "suffix", "draft_model", *HEADS)
BY_CHANCE = ("suffix", *HEADS)
"""Those that are right by chance alone, for a model of random weights."""
SETS = tuple(
    (drafter, *(name for name, on in zip(FEATURES, chosen, strict=True) if on))
    for drafter, *chosen in cover_pairs([DRAFTERS, *[(True, False)] * len(FEATURES)])
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, what drafts for it, and two adapters."""
    path = tmp_path_factory.mktemp("pairs")
    model = tiny("llama", path / "model", tokenizer=True)
    write_speculator(path / "mlp_speculator")
    write_medusa(path / "medusa")
    write_eagle(path / "eagle")
    write_eagle3(path / "eagle3")
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
    found = [SamplingParams(temperature=0.0, **common) for _ in range(7)]
    found[2] = SamplingParams(temperature=0.8, seed=5, **common)
    found[3] = SamplingParams(temperature=0.0, frequency_penalty=0.5, **common)
    form = StructuredOutputsParams(regex="[a-f]{4,9}") if "grammar" in features else None
    return [*found, SamplingParams(temperature=0.0, max_tokens=TOKENS, structured_outputs=form)]


def ask(folder: Path, features: tuple[str, ...], **more: Any) -> tuple[list[tuple[int, ...]], Any]:
    options = dict(PLAIN)
    for name in features:
        options |= FEATURES[name]
    lora = None
    if "adapters" in features:
        adapters = [LoRARequest(f"a{n}", n, str(folder / f"adapter{n}")) for n in (1, 2)]
        lora = [(None, *adapters)[place % 3] for place in range(8)]
    with LLM(str(folder / "model"), **options, **more) as llm:
        answers = llm.generate(prompts(), params(features), use_tqdm=False, lora_request=lora)
        return [tuple(one.checked().outputs[0].token_ids) for one in answers], llm.stats


@cache
def plain(folder: Path, features: tuple[str, ...], **more: Any) -> list[tuple[int, ...]]:
    return ask(folder, ("batching", *features), **more)[0]


def drafting(drafter: str, folder: Path) -> dict[str, Any]:
    checkpoint = {"draft_model": folder / "model", **{name: folder / name for name in HEADS}}.get(drafter)
    named = {} if checkpoint is None else {"model": str(checkpoint), "quantization": None}
    if drafter == "draft_model":  # nearly the same model: right, but not always
        named["quantization"] = "asym_int4_g32"
    extra = {"prompt_lookup_min": 1} if drafter == "ngram" else {}
    return {"method": drafter, "num_speculative_tokens": 3, "adaptive": False, **named, **extra}


def check(drafter: str, features: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    depth = 2 if "async" in features else 1
    ranks = more if "weights" in features else {}  # each scales the activations of its own share
    expected = plain(folder, tuple(name for name in features if name in CHANGES), **ranks)
    monkeypatch.setattr("lsv.resolve.choose_depth", lambda asked, capabilities, stages: depth)
    found, stats = ask(folder, features, speculative_config=drafting(drafter, folder), **more)
    assert found == expected
    assert stats.speculation.drafts > 0 or drafter == "suffix"  # for which something must have come before
    assert stats.speculation.accepted > 0 or drafter in BY_CHANCE


@pytest.mark.row("F-300", "F-359", "F-361", "F-426")
@pytest.mark.parametrize("chosen", SETS, ids="+".join)
def test_features_beside_drafts_change_no_token(
    chosen: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(chosen[0], chosen[1:], folder, monkeypatch)


@pytest.mark.row("F-359")
@pytest.mark.two_ranks
def test_each_rank_drafts_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = ("batching", "chunking", "prefix", "async")
    check("draft_model", features, folder, monkeypatch, tensor_parallel_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("features", tuple(itertools.combinations(FEATURES, 2)), ids="+".join)
def test_every_pair_of_features_changes_no_token(
    features: tuple[str, ...], drafter: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(drafter, features, folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.two_ranks
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_each_rank_drafts_the_same_with_each_feature(
    feature: str, drafter: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(drafter, (feature,), folder, monkeypatch, tensor_parallel_size=2)
