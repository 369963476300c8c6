"""Batched processors: what they hear of the batch, and who pays for one that fails."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv.request.params import SamplingParams
from lsv_base.errors import BadRequest, ConfigError, LsvError
from lsv_offline.batched.adapter import Batched
from lsv_offline.batched.interface import BatchUpdate, LogitsProcessor, MoveDirectionality, process_dict_updates
from lsv_runtime.logits_processor import RowsFailed
from lsv_testing.fakes.engine import engine_config
from lsv_testing.logits import GrowingHistory, check_logits_processor

from .conftest import FORCE, NO_REPEAT

VOCABULARY = 32


class Follow(LogitsProcessor):
    """Keeps the rows as it is told of them, and adds each request's number to all its logits."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.get_vocab_size() == VOCABULARY
        self.rows: dict[int, tuple[int, list[int]]] = {}
        self.size = 0
        self.updates: list[BatchUpdate | None] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)
        if batch_update is not None:
            self.size = batch_update.batch_size
        process_dict_updates(self.rows, batch_update, lambda params, prompt, output: (params.extra_args["id"], output))

    def apply(self, logits: Tensor) -> Tensor:
        assert sorted(self.rows) == list(range(self.size)) == list(range(len(logits)))
        for row, (number, _) in self.rows.items():
            logits[row] += number
        return logits


class Sharpen(LogitsProcessor):
    """Never changes which token is the likeliest; notes what it saw."""

    seen: list[list[float]] = []

    def __init__(self, *_: Any) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        self.seen.append(logits[:, 0].tolist())
        return logits.where(logits == logits.amax(-1, keepdim=True), -torch.inf)


def start(*names: str) -> Batched:
    config = engine_config(logits_processors=names)
    return Batched(config, VOCABULARY, torch.device("cpu"))


def enter(processor: Batched, prompt: Sequence[int] = (1, 2), output: Sequence[int] = (), **asked: Any) -> Any:
    return processor.begin(SamplingParams(**asked), GrowingHistory(prompt, output))


def test_rows_follow_requests_that_come_sit_out_and_leave():
    processor = start(f"{__name__}:Follow")
    heard = processor._batches[0]._processor
    states: dict[int, Any] = {}

    def step(*numbers: int) -> None:
        for number in numbers:
            if number not in states:
                states[number] = enter(processor, extra_args={"id": number})
        found = processor.apply(torch.zeros(len(numbers), VOCABULARY), [states[number] for number in numbers])
        assert found[:, 0].tolist() == list(numbers)
        for number in numbers:
            states[number].history.append(number)
        assert {row: name for row, (name, _) in heard.rows.items()} == {
            row: next(n for n, state in states.items() if state is member)
            for row, member in enumerate(processor._batches[0]._members)
        }

    def leave(*numbers: int) -> None:
        for number in numbers:
            processor.end(states.pop(number))

    step(10, 11, 12)
    step(12, 10, 11)
    assert heard.updates[-1] is None
    step(11)
    leave(10)
    step(12, 11)
    assert heard.updates[-1].removed == [0]
    assert heard.updates[-1].moved == [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    leave(12)
    step(13, 11, 14)
    assert [row for row, *_ in heard.updates[-1].added] == [0, 2]
    step(15, 16)
    leave(13, 15, 16)
    step(14, 11)
    leave(11, 14)
    step(17)
    assert heard.size == 1
    assert dict(heard.rows.values()) == {17: []}
    step(17)
    assert heard.rows[0][1] == [17]


def test_a_request_that_never_got_a_token_leaves_no_trace():
    processor = start(f"{__name__}:Follow")
    processor.end(enter(processor, extra_args={"id": 1}))
    state = enter(processor, extra_args={"id": 2})
    assert processor.apply(torch.zeros(1, VOCABULARY), [state])[0, 0] == 2


def test_what_leaves_the_likeliest_token_alone_sees_the_temperature(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sharpen, "seen", [])
    processor = start(f"{__name__}:Sharpen")
    states = [enter(processor, temperature=temperature) for temperature in (2.0, 0.0)]
    logits = torch.arange(VOCABULARY, dtype=torch.float32).repeat(2, 1) + 8
    found = processor.apply(logits.clone(), states)
    assert Sharpen.seen == [[4.0, 8.0]]
    assert torch.equal(found[1], logits[1])
    assert found[0].isfinite().sum() == 1
    assert found[0, -1] == logits[0, -1]


@pytest.mark.row("F-061", "F-223", "F-348", "F-666")
def test_no_ngram_comes_twice_also_after_a_preemption(write):
    write("made_no_repeat", NO_REPEAT)
    processor = start("made_no_repeat:NoRepeat")
    history = GrowingHistory((1, 2))
    asked = SamplingParams(extra_args={"no_repeat_ngram_size": 3})
    state, plain = processor.begin(asked, history), enter(processor)
    liked = torch.linspace(1, 0, VOCABULARY).repeat(2, 1)
    for step in range(40):
        if step == 20:
            processor.end(state)
            state = processor.begin(asked, history)
        token = int(processor.apply(liked.clone(), [plain, state])[1].argmax())
        assert processor.apply(liked[:1].clone(), [plain])[0].argmax() == 0
        history.append(token)
    output = history.output.tolist()
    grams = [tuple(output[place : place + 3]) for place in range(len(output) - 2)]
    assert len(set(grams)) == len(grams)


LAZY = """
    def __getattr__(name):
        if name != "Lazy":
            raise AttributeError(name)
        from vllm.v1.sample.logits_processor.interface import LogitsProcessor

        class Lazy(LogitsProcessor):
            def __init__(self, vllm_config, device, is_pin_memory):
                from vllm.config import VllmConfig
                assert isinstance(vllm_config, VllmConfig)

            @classmethod
            def validate_params(cls, params):
                from vllm.sampling_params import SamplingParams
                assert isinstance(params, SamplingParams)

            def is_argmax_invariant(self):
                return False

            def update_state(self, batch_update):
                import vllm.v1.sample.logits_processor as names
                assert batch_update is None or isinstance(batch_update, names.BatchUpdate)

            def apply(self, logits):
                from vllm.logger import init_logger
                if logits.sum() > 0:
                    from vllm.distributed import parallel_state
                return logits + 1

        return Lazy
"""


def test_a_class_and_the_names_that_it_needs_may_be_imported_as_late_as_in_its_methods(write):
    write("made_lazy", LAZY)
    processor = start("made_lazy:Lazy")
    state = enter(processor)
    assert processor.apply(torch.zeros(1, VOCABULARY), [state])[0, 0] == 1
    with pytest.raises(RowsFailed) as failed:
        processor.apply(torch.ones(1, VOCABULARY), [state])
    assert "vllm is lsv's stand-in here and has no vllm.distributed; docs/vllm.md" in failed.value.faults[0]
    assert importlib.util.find_spec("vllm") is None
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]


def test_rows_depend_on_their_own_requests_alone(write):
    write("made_force", FORCE)
    write("made_no_repeat", NO_REPEAT)
    processor = start("made_force:Force", "made_no_repeat:NoRepeat")
    extra = ({"target": 4}, None, {"no_repeat_ngram_size": 2}, {"target": 5})
    check_logits_processor(processor, [SamplingParams(extra_args=one) for one in extra])


def test_a_request_that_a_processor_fails_on_fails_alone(write):
    write("made_force", FORCE)
    processor = start("made_force:Force")
    states = [enter(processor, extra_args={"target": target}) for target in (3, 13, 5)]
    logits = torch.zeros(3, VOCABULARY)
    with pytest.raises(RowsFailed) as failed:
        processor.apply(logits, states)
    assert failed.value.faults == {1: "made_force:Force: KeyError: 'thirteen'"}
    assert failed.value.logits.argmax(-1)[[0, 2]].tolist() == [3, 5]
    processor.end(states[1])
    assert processor.apply(logits[:2], [states[2], states[0]]).argmax(-1).tolist() == [5, 3]


def test_unfit_arguments_are_refused(write):
    write("made_no_repeat", NO_REPEAT)
    processor = start("made_no_repeat:NoRepeat")
    with pytest.raises(BadRequest, match="NoRepeat: no_repeat_ngram_size must be an integer, got 'x'"):
        enter(processor, extra_args={"no_repeat_ngram_size": "x"})


class Reluctant(Follow):
    def __init__(self, *_: Any) -> None:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_where.at_all:Nothing", "no package no_where is installed: pip install no-where"),
        ("json.nowhere:Nothing", "can't be imported: ModuleNotFoundError"),
        (f"{__name__}:Nothing", "can't be imported: AttributeError"),
        ("json.loads", "must be called package.module:Class"),
        ("json:loads", "no class"),
        ("json:JSONDecoder", "has no apply and no is_argmax_invariant and no update_state"),
        ("lsv_offline.batched.adapter:Batched", "a plugin offers it, by the hook lsv_logits_processors"),
        (f"{__name__}:Reluctant", "can't be made: RuntimeError: not today"),
    ],
)
def test_what_is_no_processor_is_told_at_the_start(name: str, why: str):
    with pytest.raises(ConfigError, match=why) as refused:
        start(name)
    assert isinstance(refused.value, LsvError)
    assert f"--logits-processors {name}" in refused.value.message
