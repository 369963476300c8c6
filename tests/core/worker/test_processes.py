"""Tensor parallelism in processes on the cpu platform: tokens as inline, and one fate for all ranks."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsv import plugins
from lsv.config import EngineConfig, Topology
from lsv.errors import ConfigError, EngineDied
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin, Grown, Kind, Rows, StepPlan
from lsv.worker.channel import Run, Start
from lsv.worker.executor import InlineExecutor
from lsv.worker.processes import ProcessesExecutor, Rank

PROMPT = tuple(range(20, 33))


def config_of(model: Path, ranks: int, **changes: Any) -> EngineConfig:
    config = EngineConfig(
        model=str(model), served_names=("tiny",), tokenizer=str(model), architecture="LlamaForCausalLM",
        model_offer="llama", platform="cpu", attention="cpu-paged", dtype="float32", block_size=16,
        max_model_len=128, num_blocks=64, max_num_seqs=4, topology=Topology(tensor=ranks),
        plugins=("cpu", "models"), options={"cpu.native": "off", "cpu.threads": 1},
    )  # fmt: skip
    return msgspec.structs.replace(config, **changes)


def generate(executor: Any, tokens: int) -> list[int]:
    """Two requests in one batch, one greedy and one drawn; their tokens one after the other."""
    params = [SamplingParams(temperature=0.0, logprobs=1), SamplingParams(temperature=1.0, top_p=0.9)]
    begin = tuple(Begin(slot, PROMPT, len(PROMPT), params[slot], seed=5) for slot in range(2))
    blocks = tuple(Grown(slot, 0, (1 + 4 * slot, 2 + 4 * slot)) for slot in range(2))
    drawn: list[tuple[int, ...]] = []
    start, count = 0, len(PROMPT)
    for step in range(tokens):
        rows = Rows((0, 1), (start,) * 2, (count,) * 2, (0, 0), (True, True))
        executor.submit(StepPlan(step=step, kind=Kind.MIXED, begin=begin, blocks=blocks, rows=rows))
        result = executor.collect(60.0)
        assert result.step == step
        assert sorted(result.logprobs) == [0]
        drawn += result.tokens
        begin, blocks, start, count = (), (), start + count, 1
    return [token for row in (0, 1) for one in drawn[row::2] for token in one]


@pytest.fixture(scope="module")
def two_ranks(checkpoints: Callable[..., Path]) -> Iterator[ProcessesExecutor]:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    reports: list[str] = []
    fit = executor.start(config_of(checkpoints("llama"), 2), lambda stage, done, total: reports.append(stage))
    assert fit.num_blocks == 64
    assert "weights" in reports
    yield executor
    executor.stop()


def test_two_ranks_draw_as_one_does(two_ranks: ProcessesExecutor, checkpoints: Callable[..., Path]) -> None:
    inline = InlineExecutor(plugins.load(("cpu", "models")).catalog)
    inline.start(config_of(checkpoints("llama"), 1), lambda stage, done, total: None)
    expected = generate(inline, 6)
    inline.stop()
    assert generate(two_ranks, 6) == expected


def test_the_death_of_one_rank_ends_all(two_ranks: ProcessesExecutor) -> None:
    ranks = list(two_ranks._ranks)
    ranks[1].kill()
    with pytest.raises(EngineDied, match=r"rank 1 is gone \(exit code -9\)"):
        two_ranks.submit(StepPlan(step=100, kind=Kind.IDLE))
    assert not any(rank.running for rank in ranks)


def test_a_worker_that_hangs_is_named_and_ended(checkpoints: Callable[..., Path]) -> None:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    executor.start(config_of(checkpoints("llama"), 1), lambda stage, done, total: None)
    rank = executor._ranks[0]
    rank.send_signal(signal.SIGSTOP)
    executor.submit(StepPlan(step=7, kind=Kind.IDLE))
    with pytest.raises(EngineDied, match=r"step 7 took more than 0\.2 s: a worker hangs"):
        executor.collect(0.2)
    assert not rank.running


def test_what_a_rank_refuses_is_raised_here(checkpoints: Callable[..., Path]) -> None:
    config = config_of(checkpoints("llama"), 1, dtype="float12")
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    with pytest.raises(ConfigError, match="dtype float12 is unknown"):
        executor.start(config, lambda stage, done, total: None)


def test_an_order_to_a_rank_that_has_ended_raises_its_last_words(checkpoints: Callable[..., Path]) -> None:
    rank = Rank(Start(config_of(checkpoints("llama"), 1, dtype="float12"), 0, ""))
    assert rank.wait(60) == 1
    with pytest.raises(ConfigError, match="dtype float12 is unknown"):
        rank.send(Run(StepPlan(step=0, kind=Kind.IDLE)))
    rank.end()


@pytest.mark.slow
def test_a_worker_dies_with_its_parent() -> None:
    child = (
        "import os, time; from lsv.processes.lifeline import die_with; "
        "die_with(os.getppid()); print(1, flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z":
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"
