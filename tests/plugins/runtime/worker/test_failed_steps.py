"""Steps that raise: they cost their own requests, unless the device or the other ranks are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import EngineDied
from lsv_runtime.worker.executor import InlineExecutor
from lsv_runtime.worker.load.groups import Groups
from lsv_runtime.worker.results import ResultBuilder
from lsv_runtime.worker.worker import Worker
from lsv_testing.fakes.requests import make_spec

Drive = Callable[..., Any]
PROMPT = list(range(20, 26))


def out_of_memory(*_: object, **__: object) -> Any:
    raise torch.OutOfMemoryError("tried to allocate 3 GiB")


def no_time(stage: str, done: int, total: int) -> None: ...


def break_next(worker: Worker, monkeypatch: pytest.MonkeyPatch, error: Callable[..., Any] = out_of_memory) -> None:
    """The next forward pass of the worker raises."""
    runner = worker.live.runner
    assert runner is not None
    run = runner.run

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(runner, "run", run)
        return error()

    monkeypatch.setattr(runner, "run", fail_once)


def test_a_step_that_raises_fails_its_rows_and_no_others(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, alone = drive(), drive()
    expected = alone.generate(alone.begin(1, PROMPT), 4)
    begin = [driver.begin(0, PROMPT[:4]), driver.begin(1, PROMPT)]
    first = driver.run([(1, 0, 6, True)], [begin[1]]).tokens[0]
    break_next(driver.worker, monkeypatch)
    result = driver.run([(0, 0, 4, True)], [begin[0]])
    assert result.broken
    assert result.tokens == ((),)
    assert list(result.failed) == [0]
    assert "failed: OutOfMemoryError: tried to allocate 3 GiB" in result.failed[0]
    drawn = list(first)
    for start in range(6, 9):
        drawn += driver.run([(1, start, 1, True)], end=[0] if start == 6 else []).tokens[0]
    assert drawn == expected, "the request that was not in the step goes on as if nothing had happened"


def test_a_step_fails_while_others_are_in_flight(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before it keeps its result; the one planned after it for the same row is discarded by the scheduler."""
    driver = drive(settings={"in_flight": 2})
    begin = [driver.begin(slot, PROMPT) for slot in range(2)]
    driver.launch([(1, 0, 6, True)], [begin[1]])
    break_next(driver.worker, monkeypatch)
    driver.launch([(0, 0, 6, True)], [begin[0]])
    before, broken = driver.worker.finish(), driver.worker.finish()
    assert not before.failed
    assert len(before.tokens[0]) == 1
    assert broken.broken
    driver.launch([(0, 6, 1, True), (1, 6, 1, True)])
    after = driver.worker.finish()
    assert not after.broken
    assert len(after.tokens[1]) == 1


def test_an_error_that_shows_only_when_the_step_is_waited_for(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()
    driver.launch([(0, 0, 6, True)], [driver.begin(0, PROMPT)])
    monkeypatch.setattr(ResultBuilder, "settle", out_of_memory)
    result = driver.worker.finish()
    assert result.broken
    assert list(result.failed) == [0]


@pytest.mark.row("F-986")
def test_memory_is_given_back_after_it_ran_out(
    drive: Drive, device: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[bool] = []
    monkeypatch.setattr(device, "release_cache", lambda: released.append(True))
    driver = drive()
    driver.run([(0, 0, 6, True)], [driver.begin(0, PROMPT)])
    released.clear()
    break_next(driver.worker, monkeypatch)
    driver.run([(0, 6, 1, True)])
    assert released == [True]
    assert "step 2 failed, and with it 1 requests; memory ran out: lower --gpu-memory-utilization" in caplog.text


def test_a_device_that_is_lost_ends_the_worker(drive: Drive, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()

    def lost() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(device, "synchronize", lost)
    break_next(driver.worker, monkeypatch, lost)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        driver.launch([(0, 0, 6, True)], [driver.begin(0, PROMPT)])


def test_a_platform_may_know_better_which_errors_are_fatal(
    drive: Drive, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()
    monkeypatch.setattr(device, "is_fatal", lambda error: "allocate" in str(error))
    break_next(driver.worker, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        driver.launch([(0, 0, 6, True)], [driver.begin(0, PROMPT)])


def test_a_rank_that_others_wait_for_does_not_go_on(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()
    monkeypatch.setattr(driver.worker, "_groups", Groups(sharing=Mock()))
    break_next(driver.worker, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        driver.launch([(0, 0, 6, True)], [driver.begin(0, PROMPT)])


# The engine


@pytest.fixture
def engine(make_worker: Callable[..., Worker], checkpoints: Callable[..., Path]) -> Iterator[Engine[str]]:
    worker = make_worker(checkpoints("llama"), "llama")
    executor = InlineExecutor(worker._catalog)
    started = Engine[str](worker._config, executor, Fcfs())
    started.start(no_time)
    yield started
    started.close()


def submit(engine: Engine[str], owner: str, prompt: list[int]) -> None:
    spec = make_spec(prompt, SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0))
    engine.submit(owner, Submit(id=0, spec=spec))


def run(engine: Engine[str]) -> dict[str, list[Update]]:
    found: dict[str, list[Update]] = {}
    while engine.has_work:
        for owner, updates in engine.step().items():
            found.setdefault(owner, []).extend(updates)
    return found


def test_one_request_that_breaks_every_step_harms_nobody(engine: Engine[str], monkeypatch: pytest.MonkeyPatch) -> None:
    submit(engine, "alone", PROMPT)
    expected = [token for update in run(engine)["alone"] for token in update.tokens]
    executor = engine._executor
    assert isinstance(executor, InlineExecutor)
    assert executor._worker is not None
    for _ in range(7):
        break_next(executor._worker, monkeypatch)
        submit(engine, "breaks", [3, 1, 4])
        (end,) = run(engine)["breaks"]
        assert end.finish is FinishReason.ERROR
        assert end.error is not None
        assert (end.error.code, "OutOfMemoryError" in end.error.message) == ("request_failed", True)
    assert engine.stats.failed_steps_total == 7
    assert (engine.stats.running, engine.stats.waiting, engine.stats.kv_usage) == (0, 0, 0.0)
    submit(engine, "alone", PROMPT)
    assert [token for update in run(engine)["alone"] for token in update.tokens] == expected


def test_a_lost_device_ends_the_engine_with_the_reason(
    engine: Engine[str], device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = engine._executor
    assert isinstance(executor, InlineExecutor)
    assert executor._worker is not None
    monkeypatch.setattr(device, "is_fatal", lambda error: True)
    break_next(executor._worker, monkeypatch)
    submit(engine, "any", PROMPT)
    with pytest.raises(EngineDied, match="tried to allocate 3 GiB"):
        engine.step()
