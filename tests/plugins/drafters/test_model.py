"""Draft models: what they keep of sequences, what they read again, and which of them can draft for which model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_drafters.model.kept import Kept, Pool
from lsv_drafters.model.room import Room
from lsv_runtime.devices.shapes import BatchLimits
from lsv_testing.tiny import tiny

PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 4, "skip_tokenizer_init": True}


def ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def test_what_is_kept_is_read_again_from_where_it_differs() -> None:
    kept = Kept(1)
    assert kept.computed(ids(1, 2, 3)) == 0
    kept.tokens = ids(1, 2, 3, 4, 5)
    assert kept.computed(ids(1, 2, 3, 4, 5, 6, 7)) == 5
    assert kept.computed(ids(1, 2, 9, 4, 5, 6)) == 2  # the third was a wrong draft
    assert kept.computed(ids(1, 2, 3)) == 2  # the last one says what follows, and is always read


def test_who_was_drafted_for_longest_ago_gives_way() -> None:
    pool, (first, second, third) = Pool(6, 4, 1), (Kept(1) for _ in range(3))
    for one in (first, second):
        assert pool.grow(one, 9, [one])
        pool.use(one)
    pool.use(first)
    assert pool.free == 0
    assert pool.grow(third, 5, [third])  # takes the second's
    assert (len(first.blocks[0]), len(second.blocks[0]), len(third.blocks[0])) == (3, 0, 2)
    assert not pool.grow(third, 25, [first, third])
    pool.use(third)
    pool.release(first)
    pool.release(third)
    assert pool.free == 6
    assert pool.table([third], 0, 3).tolist() == [[0, 0, 0]]


def test_a_pass_has_room_for_so_many_tokens() -> None:
    limits = BatchLimits(max_rows=3, max_tokens=32, max_blocks=8)
    flat, padded = Room(limits, padded=False), Room(limits, padded=True)
    assert (flat.fit(40), padded.fit(40)) == (32, 32)
    flat.take(20)
    padded.take(20)
    assert (flat.fit(40), padded.fit(4)) == (12, 0)  # two rows of 20 would be 40 tokens
    for _ in range(2):
        flat.take(1)
    assert flat.fit(1) == 0


@pytest.mark.row("F-303", "F-359", "F-364")
def test_a_model_drafts_what_it_would_say_itself(tmp_path: Path) -> None:
    """Drawn tokens are drafted with the numbers that they are verified with: the same model is always right."""
    model = tiny("qwen2", tmp_path / "m")
    prompts = [{"prompt_token_ids": [5, 6, 7] * 20}, {"prompt_token_ids": [9]}]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=20, ignore_eos=True, detokenize=False) for t in (0, 1)]
    common = {**PLAIN, "max_num_batched_tokens": 16}  # the draft reads the first prompt in several steps
    with LLM(str(model), **common) as llm:
        plain = [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
    drafting = {"model": str(model), "num_speculative_tokens": 3, "adaptive": False, "max_model_len": 70}
    with LLM(str(model), **common, speculative_config=drafting) as llm:
        found = [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
        counts = llm.stats.speculation
    assert found == plain
    assert counts.accepted == counts.drafts > 10
    assert counts.drafts < 30  # the first answer soon is longer than the draft model may read


def test_a_tokenizer_of_its_own_is_refused(tmp_path: Path) -> None:
    model, other = (tiny("llama", tmp_path / name, tokenizer=True) for name in "mo")
    file = other / "tokenizer.json"
    read = json.loads(file.read_text(encoding="utf-8"))
    names = sorted(read["model"]["vocab"], key=read["model"]["vocab"].get)
    read["model"]["vocab"] |= {names[7]: 8, names[8]: 7}
    file.write_text(json.dumps(read), encoding="utf-8")
    with pytest.raises(ConfigError, match="must share a tokenizer"):
        LLM(str(model), **PLAIN, speculative_config={"model": str(other)})


@pytest.mark.parametrize(("family", "shape", "words"), [
    ("llama", {"vocab_size": 400}, "has 400 tokens, and the model 320"),
    ("mamba", {}, "recurrent layers"),
])  # fmt: skip
def test_a_misfit_is_named(family: str, shape: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, other = tiny("llama", tmp_path / "m"), tiny(family, tmp_path / "o", **shape)
    with pytest.raises(ConfigError, match=words):
        LLM(str(model), **PLAIN, speculative_config={"model": str(other)})


@pytest.mark.row("F-307", "F-308", "F-309", "F-363")
def test_typical_drafts_are_accepted_where_tokens_are_drawn(tmp_path: Path) -> None:
    """With terms that take anything all drafts count; greedy answers stay as they are."""
    model, other = tiny("llama", tmp_path / "m"), tiny("llama", tmp_path / "o", seed=4)
    prompts = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [9, 8]}]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=20, ignore_eos=True, detokenize=False) for t in (0, 1)]
    with LLM(str(model), **PLAIN) as llm:
        plain = llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids
    drafting = {"model": str(other), "num_speculative_tokens": 3, "adaptive": False}
    counts = {}
    for terms in ({}, {"acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 0.0}):
        with LLM(str(model), **PLAIN, speculative_config={**drafting, **terms}) as llm:
            assert llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids == plain
            counts[len(terms)] = llm.stats.speculation.accepted
    assert counts[2] >= 14 > counts[0]
