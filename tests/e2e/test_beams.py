"""Beam search finds transformers' answers with transformers' scores, however the engine computes them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lsv import LLM, BeamSearchParams, RequestOutput, SamplingParams
from lsv_testing.tiny import tiny

pytestmark = [pytest.mark.row("F-047"), pytest.mark.row("F-347")]

BASE: Mapping[str, Any] = {
    "platform": "cpu", "emulate": False, "dtype": "float32",
    "max_model_len": 128, "max_num_seqs": 16, "num_gpu_blocks_override": 200,
}  # fmt: skip
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "cached": {"enable_prefix_caching": True},
    "uncached": {"enable_prefix_caching": False},
    "chunked": {"enable_chunked_prefill": True, "max_num_batched_tokens": 16},
    "preempted": {"num_gpu_blocks_override": 13, "max_num_seqs": 16, "block_size": 16},
    "few slots": {"max_num_seqs": 3},
    "steps ahead": {"platform": "xpu", "emulate": True, "async_scheduling": True},
    "one by one": {"platform": "xpu", "emulate": True, "async_scheduling": False},
    "prompts apart": {"platform": "hpu", "emulate": True},
}
TOLERANCE = 1e-5
STOPS = tuple(range(0, 256, 9))
"""Ids that end answers: so many that most beams end early."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"n": 4, "max_tokens": 12},
    "some": {"n": 2, "best_of": 5, "max_tokens": 12},
    "one": {"n": 1, "best_of": 3, "max_tokens": 9},
    "ended": {"n": 4, "max_tokens": 20, "stop_token_ids": STOPS},
    "short": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "length_penalty": -1.0},
    "long": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "length_penalty": 2.5},
    "unranked": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "length_penalty": 0.0},
    "early": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "early_stopping": True},
    "never": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "early_stopping": "never"},
    "never long": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "early_stopping": "never", "length_penalty": 2.0},
    "min_tokens": {"n": 3, "max_tokens": 20, "stop_token_ids": STOPS, "min_tokens": 7},
    "single": {"n": 1, "max_tokens": 20, "stop_token_ids": STOPS},
}


def prompts() -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(256) for _ in range(length)] for length in (3, 16, 41)]


@pytest.fixture(scope="module", params=[0, 1, 2])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("beams"), seed=request.param, tokenizer=True)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), **BASE) as made:
        yield made


def beams(**params: Any) -> SamplingParams:
    return SamplingParams(use_beam_search=True, temperature=0.0, ignore_eos=True, **params)


def expected(model: Any, prompt: list[int], params: SamplingParams, **more: Any) -> list[tuple[tuple[int, ...], float]]:
    """transformers' answers, and their scores."""
    given = torch.tensor([prompt])
    found = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        num_beams=params.best_of or params.n,
        num_return_sequences=params.n,
        max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens or None,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=list(params.stop_token_ids) or None,
        pad_token_id=-1,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    if found.get("sequences_scores") is None:  # one beam is greedy search
        return [(tuple(row.tolist()), 0.0) for row in found.sequences[:, len(prompt) :]]
    rows = [ended(row.tolist(), params.stop_token_ids) for row in found.sequences[:, len(prompt) :]]
    return list(zip(rows, found.sequences_scores.tolist(), strict=True))


def ended(row: list[int], stops: tuple[int, ...]) -> tuple[int, ...]:
    row = [token for token in row if token >= 0]
    last = next((place for place, token in enumerate(row) if token in stops), len(row))
    return tuple(row[: last + 1])


def found(output: RequestOutput, params: SamplingParams) -> list[tuple[tuple[int, ...], float]]:
    return [
        (answer.token_ids, answer.cumulative_logprob / len(answer.token_ids) ** params.length_penalty)
        for answer in output.checked().outputs
    ]


def check(output: RequestOutput, model: Any, prompt: list[int], params: SamplingParams, **more: Any) -> None:
    theirs = expected(model, prompt, params, **more)
    ours = found(output, params)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    if (params.best_of or params.n) > 1:
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], rel=TOLERANCE)


@pytest.mark.row("F-038")
@pytest.mark.row("F-048")
@pytest.mark.row("F-049")
@pytest.mark.daily(checkpoint=[0])
@pytest.mark.parametrize("case", CASES)
def test_answers_and_scores_are_those_of_transformers(llm: LLM, model: Any, case: str) -> None:
    params = beams(**CASES[case])
    given = prompts()
    for prompt, output in zip(given, llm.generate(given, params, use_tqdm=False), strict=True):
        check(output, model, prompt, params)


@pytest.mark.row("F-961")
@pytest.mark.daily(checkpoint=[0])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_way_of_computing_changes_an_answer(checkpoint: Path, llm: LLM, model: Any, engine: str) -> None:
    given, params = prompts(), [beams(**CASES[case]) for case in ("plain", "some", "ended")]
    plain = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    alone = llm.generate(given, plain, use_tqdm=False)
    with LLM(str(checkpoint), **{**BASE, **ENGINES[engine]}) as other:
        outputs = other.generate(given * 2, [plain] * 3 + params, use_tqdm=False)
        for prompt, one, output in zip(given, params, outputs[3:], strict=True):
            check(output, model, prompt, one)
        assert [output.outputs[0].token_ids for output in outputs[:3]] == [one.outputs[0].token_ids for one in alone]
        assert (engine == "preempted") == (other.stats.preemptions_total > 0)
        assert other.stats.kv_usage == 0.0
        assert other.stats.running == other.stats.waiting == 0


def test_others_in_the_batch_are_not_disturbed(llm: LLM, model: Any) -> None:
    given = prompts()
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    drawn = SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True, seed=5, n=2)
    alone = [llm.generate(given, one, use_tqdm=False) for one in (plain, drawn)]
    searched = beams(**CASES["plain"])
    mixed = llm.generate(given * 3, [plain] * 3 + [searched] * 3 + [drawn] * 3, use_tqdm=False)
    for before, after in zip((*alone[0], *alone[1]), (*mixed[:3], *mixed[6:]), strict=True):
        assert [one.token_ids for one in before.outputs] == [one.token_ids for one in after.outputs]
    for prompt, output in zip(given, mixed[3:6], strict=True):
        check(output, model, prompt, searched)


def test_stop_strings_end_beams(llm: LLM, model: Any, checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    stop = [chr(letter) for letter in range(ord("!"), ord("~"), 5)]
    params = beams(n=3, max_tokens=20, stop=stop, skip_special_tokens=False)
    given = prompts()
    ended = 0
    for prompt, output in zip(given, llm.generate(given, params, use_tqdm=False), strict=True):
        theirs = expected(model, prompt, params, stop_strings=stop, tokenizer=tokenizer)
        assert [answer.token_ids for answer in output.outputs] == [tokens for tokens, _ in theirs]
        ended += sum(answer.stop_reason in stop for answer in output.outputs)
    assert ended


def test_beams_as_newer_vllm_has_them(llm: LLM, model: Any) -> None:
    given = prompts()
    outputs = llm.beam_search(given, BeamSearchParams(beam_width=3, max_tokens=9, ignore_eos=True))
    params = beams(n=3, max_tokens=9, early_stopping="never")
    for prompt, output in zip(given, outputs, strict=True):
        for beam, (tokens, score) in zip(output.sequences, expected(model, prompt, params), strict=True):
            assert beam.tokens == prompt + list(tokens)
            assert beam.cum_logprob / 9 == pytest.approx(score, rel=TOLERANCE)
            assert beam.finish_reason == "length"
            assert [next(iter(position)) for position in beam.logprobs] == list(tokens)
            assert beam.text is not None
