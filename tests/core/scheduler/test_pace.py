"""``--max-itl-ms``: what steps cost is learned from their times, and prompts get no more of a step than fits."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import deque
from collections.abc import Callable

import msgspec
import pytest

from lsv.request.request import Request
from lsv.scheduler.limits import Limits
from lsv.scheduler.pace import Pace
from lsv.scheduler.plan import Rows, StepPlan
from lsv_testing.fakes.rig import Rig

Machine = Callable[[StepPlan], float]
"""Seconds of a step."""


def machine(noise: float = 0.02, seed: int = 0) -> Machine:
    """Reading weights takes 25 ms, computing 0.7 ms a token, whichever is longer; attention comes on top."""
    rng = random.Random(seed)

    def seconds(plan: StepPlan) -> float:
        rows = plan.rows
        pairs = sum(count * (start + count / 2) for start, count in zip(rows.start, rows.count, strict=True))
        taken = max(0.025, 0.0007 * plan.tokens) + 1e-7 * pairs
        return taken * (1 + noise * abs(rng.gauss(0, 1)))

    return seconds


class Server:
    """A rig whose clock runs as the machine's steps take."""

    def __init__(self, machine: Machine, max_itl: float | None, **limits: object) -> None:
        bounds = {
            "max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_model_len": 8192, "max_itl": max_itl, **limits,
        }  # fmt: skip
        self.rig = Rig(limits=Limits(**bounds), num_blocks=2048, block_size=32)
        self.seconds: list[float] = []
        self._machine = machine
        self._in_flight: deque[StepPlan] = deque()

    def step(self) -> StepPlan:
        """Plan as far ahead as the depth allows and settle one step."""
        rig = self.rig
        while (planned := rig.plan()) is not None:
            self._in_flight.append(planned)
        plan = self._in_flight.popleft()
        result = msgspec.structs.replace(rig.worker.collect(0.0), seconds=self._machine(plan))
        rig.clock.advance(result.seconds)
        self.seconds.append(result.seconds)
        rig.note(rig.scheduler.settle(plan, result, rig.clock()))
        return plan

    def steps(self, count: int) -> list[float]:
        return [self.seconds[-1] for _ in range(count) if self.step()]

    def finish(self, request: Request) -> list[float]:
        """Step until the request has its first token: the seconds of these steps."""
        began = len(self.seconds)
        while request.first_token is None:
            self.step()
        return self.seconds[began:]


def enter_long_prompt(server: Server, streams: int) -> tuple[float, list[float], float]:
    """The median step of running streams, the steps while 4,096 tokens enter, and their time to the first token."""
    for id in range(streams):
        server.rig.ask(id, range(5000 + id, 5100 + id), max_tokens=4000)
    server.steps(40)
    alone = statistics.median(server.steps(40))
    began = server.rig.clock()
    beside = server.finish(server.rig.ask(99, range(4096), max_tokens=4))
    return alone, beside, server.rig.clock() - began


def unloaded() -> float:
    server = Server(machine(), None)
    server.finish(server.rig.ask(99, range(4096), max_tokens=4))
    return server.rig.clock()


@pytest.mark.row("F-330")
@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_running_answers_go_on_while_a_long_prompt_enters(streams, seed):
    alone, beside, ttft = enter_long_prompt(Server(machine(seed=seed), max_itl=0.05), streams)
    assert alone < 0.028
    p99 = sorted(beside)[int(0.99 * len(beside))]
    assert p99 <= 2 * alone
    assert ttft <= 2.5 * unloaded()


def test_without_a_limit_prompts_take_whole_steps():
    _, beside, _ = enter_long_prompt(Server(machine(), None), 4)
    assert len(beside) == 3
    assert max(beside) > 1


def test_nobody_decoding_means_no_limit():
    server = Server(machine(), max_itl=0.05)
    server.rig.ask(0, range(4000), max_tokens=4)
    assert [server.step().tokens for _ in range(2)] == [2048, 1952]


def test_limit_that_can_not_be_kept_is_known_and_prompts_get_on():
    server = Server(machine(), max_itl=0.01)
    alone, beside, _ = enter_long_prompt(server, 2)
    assert len(beside) == 4096 // 8
    assert server.rig.scheduler.too_slow == pytest.approx(alone, rel=0.1)


def test_limit_that_is_kept_is_not_called_too_short():
    server = Server(machine(), max_itl=0.05)
    enter_long_prompt(server, 4)
    assert server.rig.scheduler.too_slow is None


def test_one_slow_step_is_no_verdict():
    hiccups = iter([10.0, 1.0, 1.0, 1.0, 10.0])
    usual = machine()
    server = Server(lambda plan: usual(plan) * next(hiccups, 1.0), max_itl=0.05)
    enter_long_prompt(server, 4)
    assert server.rig.scheduler.too_slow is None


def test_first_long_prompt_starts_small_where_nothing_is_known():
    server = Server(machine(), max_itl=0.2)
    server.rig.ask(0, (7000, 7001, 7002), max_tokens=400)
    server.steps(20)
    server.rig.ask(1, range(4096), max_tokens=4)
    chunks = [server.step().tokens - 1 for _ in range(6)]
    assert chunks[0] <= 32
    assert statistics.median(chunks) > 150
    assert max(server.seconds) < 0.2


def test_limit_holds_for_both_turns_where_steps_are_not_mixed():
    alone, beside, _ = enter_long_prompt(Server(machine(), max_itl=0.08, mixed_batches=False), 4)
    pairs = [one + other for one, other in itertools.pairwise(beside)]
    assert statistics.median(pairs) > 0.055
    assert sorted(pairs)[int(0.99 * len(pairs))] <= 0.08
    assert alone < 0.03


def test_machine_that_becomes_slower_is_followed():
    speed = 1.0
    usual = machine()
    server = Server(lambda plan: usual(plan) * speed, max_itl=0.1)
    enter_long_prompt(server, 4)
    speed = 1.5
    server.steps(200)
    beside = server.finish(server.rig.ask(100, range(9000, 13096), max_tokens=4))
    assert statistics.median(beside) <= 0.1


# Prompts that begin alike


def enter_family(server: Server, streams: int) -> list[Request]:
    """Sixteen prompts of 1,024 shared tokens and 20 of their own arrive together; step until all have a token."""
    for id in range(streams):
        server.rig.ask(id, range(5000 + id, 5100 + id), max_tokens=400)
    if streams:
        server.steps(20)
    family = [
        server.rig.ask(100 + id, (*range(1024), *range(10_000 + 50 * id, 10_020 + 50 * id)), max_tokens=4)
        for id in range(16)
    ]
    while any(one.first_token is None for one in family):
        server.step()
    return family


@pytest.mark.parametrize(
    ("streams", "limits"),
    [
        (0, {}),
        (0, {"max_num_batched_tokens": 100}),
        (4, {"max_itl": 0.05}),
        (4, {"max_itl": 0.05, "depth": 2}),
        (4, {"max_itl": 0.1, "mixed_batches": False}),
    ],
)
def test_shared_beginning_that_nobody_has_yet_is_computed_once(streams, limits):
    server = Server(machine(), **{"max_itl": None, **limits})
    family = enter_family(server, streams)
    rows = [row for plan in server.rig.plans for row in zip(plan.rows.start, plan.rows.count, strict=True)]
    shared = [(start, count) for start, count in rows if count > 1 and start < 1024]
    computed = sum(min(1024, start + count) - start for start, count in shared)
    assert computed == 1024 + 100 * streams
    assert [one.cached for one in family] == [0] + 15 * [1024]


@pytest.mark.parametrize("tokens", [128, 2048])
def test_who_waits_for_a_shared_beginning_enters_in_the_step_after_it(tokens):
    server = Server(machine(), None, max_num_batched_tokens=tokens)
    enter_family(server, 0)
    plans = server.rig.plans
    done = next(number for number, plan in enumerate(plans) if plan.rows.start[-1] + plan.rows.count[-1] >= 1024)
    assert [len(plan.begin) for plan in plans[: done + 1]] == [1] + [0] * done
    assert len(plans[done + 1].begin) == min(15, -(-(tokens - 20) // 20))


# Single steps


def pace(alone: float = 0.02, limit: float = 0.1, **beside: float) -> Pace:
    """What a pace knows that saw ``alone`` seconds of decoding, and ``cN``: a step with N prompt tokens beside that."""
    made = Pace(limit)
    for name, seconds in [("c1", alone), *beside.items()]:
        made.learn(Rows((0, 1), (5, 0), (1, int(name[1:])), (0, 0), (True, False)), seconds)
    return made


def test_chunk_is_the_last_one_corrected_by_what_it_missed():
    assert pace().prompt_tokens(0) == 32
    # a token costs at most 0.4 ms, and 0.085 s are aimed at
    assert 208 <= pace(c100=0.04, c400=0.16).prompt_tokens(0) <= 224
    assert 40 <= pace(c100=0.2).prompt_tokens(0) <= 44


def test_chunks_far_into_a_prompt_are_smaller():
    near, far = (pace(c100=0.09).prompt_tokens(start) for start in (0, 16384))
    assert 8 < far <= near / 2


def test_chunks_are_never_nothing():
    assert pace(alone=0.5, c64=0.9).prompt_tokens(0) == 8


def test_slow_steps_have_to_be_many_to_be_called_so():
    made = pace()
    for _ in range(15):
        made.learn(Rows((0,), (5,), (1,), (0,), (True,)), 0.2)
    assert made.too_slow is None
    for _ in range(2):
        made.learn(Rows((0,), (5,), (1,), (0,), (True,)), 0.3)
    assert made.too_slow == 0.2


def test_steps_without_rows_tell_nothing():
    made = pace()
    for _ in range(20):
        made.learn(Rows(), 9.0)
    assert made.too_slow is None
