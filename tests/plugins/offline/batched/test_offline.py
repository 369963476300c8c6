"""Processors of an engine and functions of a request, with a model in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from lsv.plugins.logits_processors import complete_processors
from lsv_base.errors import BadRequest, ConfigError, RequestFailed
from lsv_offline.batched.interface import BatchUpdate, LogitsProcessor
from lsv_testing.fakes.engine import engine_config
from suite.engines import Engines

from .conftest import FORCE, NO_REPEAT

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
OPTIONS: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 64}


class Backwards(LogitsProcessor):
    """Turns the order of tokens round."""

    def __init__(self, *_: Any) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return -logits


@pytest.fixture
def plain(engine_for: Engines) -> LLM:
    return engine_for("lsv-demo", **OPTIONS)


def answers(llm: LLM, *params: SamplingParams, prompt: str = "Who are you?") -> list[list[tuple[int, ...]]]:
    outputs = llm.generate([prompt] * len(params), list(params), use_tqdm=False)
    return [[answer.token_ids for answer in output.checked().outputs] for output in outputs]


def ngrams(ids: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [ids[place : place + size] for place in range(len(ids) - size + 1)]


@pytest.mark.row("F-061", "F-223", "F-348")
@pytest.mark.parametrize(
    "platform",
    [{}, pytest.param({"platform": "cuda", "emulate": True}, marks=pytest.mark.slow), {"tensor_parallel_size": 2}],
    ids=str,
)
def test_processors_of_an_engine_with_steps_ahead_candidates_prefixes_and_preemption(write, platform: dict[str, Any]):
    write("made_force", FORCE)
    write("made_no_repeat", NO_REPEAT)
    names = ["made_no_repeat:NoRepeat", "made_force:Force"]
    asked = GREEDY.replace(extra_args={"no_repeat_ngram_size": 2})
    hot = asked.replace(temperature=1.5, n=3, seed=3)
    some = [asked, GREEDY, GREEDY.replace(extra_args={"target": 9}), hot]
    options = {**OPTIONS, **platform}
    with LLM("lsv-demo", **options) as plain:
        (usual,) = answers(plain, GREEDY)
    with LLM("lsv-demo", logits_processors=names, **options) as llm:
        assert llm.config.in_flight == (2 if platform.get("emulate") else 1)
        first = answers(llm, *some)
        assert answers(llm, *some) == first  # from the prefix cache, and in another order
        assert answers(llm, *some[::-1]) == first[::-1]
    for ids in (*first[0], *first[3]):
        assert len(set(ngrams(ids, 2))) == 23
    assert first[1] == usual
    assert first[2] == [(9,) * 24]
    # blocks for few requests: they push each other out again and again
    few = {
        **options,
        "num_gpu_blocks_override": 8,
        "max_model_len": 96,
        "block_size": 16,
        "enable_prefix_caching": False,
    }
    with LLM("lsv-demo", logits_processors=names, **few) as llm:
        long = [one.replace(max_tokens=60) for one in (*(asked,) * 7, GREEDY)]
        found = answers(llm, *long)
        assert llm.stats.preemptions_total > 0
    assert {one[0][:24] for one in found[:7]} == {first[0][0]}
    assert len(set(ngrams(found[0][0], 2))) == 59


def test_a_class_is_as_good_as_its_name(plain: LLM):
    with LLM("lsv-demo", logits_processors=[Backwards], **OPTIONS) as llm:
        (found,) = answers(llm, GREEDY.replace(max_tokens=1))
    with LLM("lsv-demo", logits_processors=[f"{__name__}:Backwards", Backwards], **OPTIONS) as llm:
        (again,) = answers(llm, GREEDY.replace(max_tokens=1))
        with pytest.raises(BadRequest, match="this engine has logits processors") as refused:
            answers(llm, GREEDY.replace(max_tokens=1, use_beam_search=True, best_of=2))
        assert refused.value.param == "use_beam_search"
    assert again == answers(plain, GREEDY.replace(max_tokens=1))[0] != found

    class Local(Backwards):
        pass

    with pytest.raises(ConfigError, match="Local stands in a function"):
        LLM("lsv-demo", logits_processors=[Local], **OPTIONS)


class Count:
    """A function with a state of its own: the n-th call gives token n."""

    def __init__(self) -> None:
        self.calls = 0

    def clone(self) -> Count:
        return Count()

    def __call__(self, output: list[int], logits: Tensor) -> Tensor:
        assert len(output) == self.calls
        self.calls += 1
        return torch.full_like(logits, -torch.inf).index_fill_(0, torch.tensor([self.calls]), 0.0)


def echo(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    """Say the prompt again."""
    logits[prompt[len(output) % len(prompt)]] = 1e6
    return logits


def fail(output: list[int], logits: Tensor) -> Tensor:
    raise KeyError("no")


@pytest.mark.row("F-061", "F-348")
def test_functions_of_a_request(plain: LLM):
    ids = tuple(plain.get_tokenizer().encode("Who are you?"))
    say = GREEDY.replace(max_tokens=len(ids))
    some = [
        say.replace(logits_processors=[echo]),
        say.replace(temperature=1.0, n=2, logits_processors=[Count()]),
        say,
        say.replace(logits_processors=[echo, lambda output, logits: logits + 1]),
        say.replace(logits_processors=[]),
    ]
    found = answers(plain, *some)
    assert found[0] == found[3] == [ids]
    assert found[1] == [tuple(range(1, len(ids) + 1))] * 2
    assert found[2] == found[4] == answers(plain, say)[0]


def test_functions_fail_their_own_request_by_name(plain: LLM):
    some = [GREEDY, GREEDY.replace(logits_processors=[fail]), GREEDY.replace(logits_processors=[lambda o, x: None])]
    outputs = plain.generate(["Hi"] * 3, some, use_tqdm=False)
    assert [output.error and output.error.message for output in outputs] == [
        None,
        "logits processors failed: callables: KeyError: 'no'",
        "logits processors failed: callables: ValueError: it must return logits of the shape (1024,), got None",
    ]


async def test_an_engine_in_a_process_of_its_own(write):
    write("made_force", FORCE)
    args = AsyncEngineArgs(model="lsv-demo", max_model_len=256, logits_processors=["made_force:Force"])
    async with AsyncLLMEngine.from_engine_args(args) as engine:

        async def ids(params: SamplingParams) -> tuple[int, ...]:
            outputs = [output async for output in engine.generate("Hi", params, str(id(params)))]
            return outputs[-1].outputs[0].token_ids

        asked = GREEDY.replace(max_tokens=4)
        fine, failed, plain = await asyncio.gather(
            *(ids(asked.replace(extra_args=one)) for one in ({"target": 9}, {"target": 13}, None)),
            return_exceptions=True,
        )
        assert fine == (9,) * 4
        assert isinstance(failed, RequestFailed)
        assert "made_force:Force: KeyError: 'thirteen'" in failed.message
        assert isinstance(plain, tuple)
        with pytest.raises(BadRequest, match="functions can't be sent to an engine in another process"):
            await ids(asked.replace(logits_processors=[echo]))


def test_what_nobody_could_keep_is_refused(plain: LLM):
    with pytest.raises(BadRequest, match="no logits processors that could use it") as refused:
        plain.generate("Hi", GREEDY.replace(extra_args={"a": 1}), use_tqdm=False)
    assert refused.value.param == "extra_args"
    for config, inline in ((engine_config(executor="processes"), True), (engine_config(executor="inline"), False)):
        with pytest.raises(BadRequest, match="functions can't be sent to an engine in another process"):
            complete_processors(config, GREEDY.replace(logits_processors=[echo]), inline=inline)
