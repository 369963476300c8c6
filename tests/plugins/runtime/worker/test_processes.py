"""Tensor parallelism in processes on the cpu platform: tokens as inline, and one fate for all ranks."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsv import plugins
from lsv.config import EngineConfig, Topology
from lsv.engine.executor import ReleaseMemory, Reset, StopProfiler
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin, Grown, Kind, Rows, StepPlan
from lsv_base.errors import ConfigError, EngineDied, LsvError
from lsv_base.processes.orders import WorkerOrder
from lsv_base.processes.wire import Failed, encode_frame
from lsv_runtime.worker.channel import Controlled, Loading, Run, Start
from lsv_runtime.worker.executor import InlineExecutor
from lsv_runtime.worker.processes import ProcessesExecutor, Rank, RankLink
from suite.processes import is_running
from suite.waiting import wait_until

pytestmark = pytest.mark.xdist_group("processes")  # the ranks are started once

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


def keep_checking(executor: ProcessesExecutor) -> None:
    for _ in range(100):
        executor.check()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def two_ranks(checkpoints: Callable[..., Path]) -> Iterator[ProcessesExecutor]:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    reports: list[str] = []
    fit = executor.start(config_of(checkpoints("llama"), 2), lambda stage, done, total: reports.append(stage))
    assert fit.num_blocks == 64
    assert "weights" in reports
    yield executor
    executor.stop()


@pytest.mark.cold
@pytest.mark.row("F-279")
def test_two_ranks_draw_as_one_does(two_ranks: ProcessesExecutor, checkpoints: Callable[..., Path]) -> None:
    inline = InlineExecutor(plugins.load(("cpu", "models")).catalog)
    inline.start(config_of(checkpoints("llama"), 1), lambda stage, done, total: None)
    expected = generate(inline, 6)
    inline.stop()
    assert generate(two_ranks, 6) == expected


@pytest.mark.row("F-280", "F-567")
@pytest.mark.parametrize("topology", [Topology(pipeline=2, tensor=2), Topology(pipeline=2, layers=(1, 1))])
def test_stages_draw_as_one_rank_does(checkpoints: Callable[..., Path], topology: Topology) -> None:
    catalog = plugins.load(("cpu", "models")).catalog
    config = config_of(checkpoints("llama"), 1)
    answers = []
    for executor in (InlineExecutor(catalog), ProcessesExecutor(catalog)):
        executor.start(config, lambda stage, done, total: None)
        answers.append(generate(executor, 6))
        executor.stop()
        config = msgspec.structs.replace(config, topology=topology, in_flight=2)
    assert answers[0] == answers[1]


class Polish(WorkerOrder, frozen=True):
    """An order that workers do not know."""


def test_ranks_refuse_an_unknown_order_and_go_on(two_ranks: ProcessesExecutor) -> None:
    with pytest.raises(ConfigError, match="unknown order 'polish': workers know reset, release_memory"):
        two_ranks.control(Polish())
    assert two_ranks.control(Reset()) == [{}, {}]


def test_ranks_meet_where_others_can_not_come(two_ranks: ProcessesExecutor) -> None:
    """They meet over a file in a private folder; gloo's own connections are made on the loopback interface."""
    folder = two_ranks._folder
    assert folder is not None
    assert folder.path.stat().st_mode & 0o777 == 0o700
    inodes = {
        link.readlink().name.removeprefix("socket:[").rstrip("]")
        for rank in two_ranks._ranks
        for link in Path(f"/proc/{rank.pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:")
    }
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in inodes
    ]
    assert {address.split(":")[0] for address in listening} <= {"0100007F", "0" * 24 + "0100007F"}, listening


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


def test_a_worker_that_hangs_before_it_has_read_a_long_plan_is_ended(checkpoints: Callable[..., Path]) -> None:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    executor.start(config_of(checkpoints("llama"), 1, step_timeout=0.2), lambda stage, done, total: None)
    rank = executor._ranks[0]
    rank.send_signal(signal.SIGSTOP)
    long = StepPlan(step=7, kind=Kind.IDLE, begin=(Begin(0, tuple(range(300_000)), 300_000),))
    with pytest.raises(EngineDied, match=r"rank 0 has not taken step 7 for 0\.2 s: its worker hangs"):
        executor.submit(long)
    assert not rank.running


def test_a_rank_that_hangs_or_ends_while_nothing_is_asked_of_it_is_seen(checkpoints: Callable[..., Path]) -> None:
    for number, words in (
        (signal.SIGSTOP, r"rank 1 has said nothing for 0\.3 s"),
        (signal.SIGKILL, r"rank 1 is gone \(exit code -9\)"),
    ):
        executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
        executor.start(config_of(checkpoints("llama"), 2, step_timeout=0.3), lambda stage, done, total: None)
        folder = executor._folder
        assert folder is not None
        for _ in range(10):  # it is silent, but says that it lives
            executor.check()
            time.sleep(0.05)
        executor._ranks[1].send_signal(number)
        with pytest.raises(EngineDied, match=words):
            keep_checking(executor)
        assert not executor._ranks
        assert not folder.path.exists()


def test_a_rank_that_hangs_while_it_loads_is_named(
    checkpoints: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)

    class Stopped(Rank):
        def __init__(self, start: Start) -> None:
            super().__init__(start)
            if start.rank == 1:
                self.send_signal(signal.SIGSTOP)

    monkeypatch.setattr("lsv_runtime.worker.processes.Rank", Stopped)
    with pytest.raises(EngineDied, match=r"no progress of rank .*1 for 6 s \(load_timeout\)"):
        executor.start(config_of(checkpoints("llama"), 2, load_timeout=6.0), lambda stage, done, total: None)


def test_an_engine_hears_of_its_end_while_its_ranks_load_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for that whenever it tells of progress."""
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    here, there = socket.socketpair()
    monkeypatch.setattr(executor, "launch", lambda config: iter([RankLink(0, here)]))
    told: list[tuple[str, int, int]] = []

    def stop(stage: str, done: int, total: int) -> None:
        told.append((stage, done, total))
        if len(told) == 3:
            raise SystemExit

    there.sendall(encode_frame(Loading("weights", 1, 2)))
    with there, pytest.raises(SystemExit):
        executor.start(config_of(Path("none"), 1, load_timeout=20.0), stop)
    assert told == [("weights", 1, 2)] * 3
    executor.stop()


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


@pytest.mark.parametrize("order", [ReleaseMemory(1), StopProfiler()])
def test_writing_a_profile_or_falling_asleep_may_take_longer_than_a_step(order: WorkerOrder) -> None:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    here, there = socket.socketpair()
    executor._ranks, executor._limit, executor._load_limit = [RankLink(0, here)], 0.02, 30.0
    answer = threading.Timer(0.2, lambda: there.sendall(encode_frame(Controlled())))
    answer.start()
    with there:
        executor.control(order)
        answer.join()
    executor.stop()


REFUSED = ConfigError("the weights of rank 1 do not fit")
BROKEN = EngineDied("the sum of rank 1 was broken off")


@pytest.mark.parametrize(
    ("second", "told"),
    [("gone", "rank 1 is gone"), (REFUSED, "of rank 1 do not fit"), (BROKEN, "sum of rank 0"), ("", "sum of rank 0")],
)
def test_the_rank_by_which_others_fail_is_told_before_them(second: LsvError | str, told: str) -> None:
    executor = ProcessesExecutor(plugins.load(("cpu", "models")).catalog)
    (first, there), (other, elsewhere) = socket.socketpair(), socket.socketpair()
    executor._ranks, executor._limit = [RankLink(0, first), RankLink(1, other)], 5.0
    there.sendall(encode_frame(Failed(EngineDied("the sum of rank 0 was broken off").record())))
    if isinstance(second, LsvError):
        elsewhere.sendall(encode_frame(Failed(second.record())))
    later = threading.Timer(0.1, elsewhere.close if second == "gone" else lambda: None)
    later.start()
    with there, elsewhere, pytest.raises(LsvError, match=told):
        executor.check()
    later.join()


@pytest.mark.slow
def test_a_worker_dies_with_its_parent() -> None:
    child = (
        "import os, time; from lsv_base.processes.lifeline import die_with; "
        "die_with(os.getppid()); print(1, flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid), 10)
