"""The simulator against what queueing theory says, and against itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulate.__main__ import main
from simulate.autoscale import Scale
from simulate.clock import Clock
from simulate.engine import Job, Record, SimulatedEngine
from simulate.figures import Spread
from simulate.fleet import Fleet, Shape
from simulate.run import simulate
from simulate.size import Target, find_fewest
from simulate.steps import StepTimes
from simulate.workload import Load

ONE_BY_ONE = StepTimes(((1, 0.001),), ((1, 0.001), (1000, 1.0)), max_num_seqs=1, max_num_batched_tokens=1 << 20)
"""A millisecond a token, one request after another: the length of a prompt is its time of service."""
QUEUE = Load(rate=5.0, first=0, said=100, answer=1, turns=1, spread=1.0)
"""At such an engine, a load of a half with exponential times of service."""
CARD = StepTimes(
    ((1, 0.02), (64, 0.024)), ((1, 0.02), (64, 0.022), (512, 0.06), (2048, 0.2)),
    context=1e-8, pair=1e-10, kv_tokens=100_000, load=20.0,
)  # fmt: skip
CHATS = Load(users=60, think=5.0, turns=4)


def test_the_time_in_an_m_m_1_queue() -> None:
    found = simulate(ONE_BY_ONE, Shape(), QUEUE, seconds=2000, warm=100)
    assert found.done == pytest.approx(5 * 2000, rel=0.03)
    assert found.e2e.mean == pytest.approx(1 / (10 - 5), rel=0.08)
    assert found.busy_seconds / found.seconds == pytest.approx(0.5, rel=0.05)


def test_the_time_in_an_m_d_1_queue() -> None:
    found = simulate(ONE_BY_ONE, Shape(), replace(QUEUE, spread=0.0), seconds=1000, warm=50)
    assert found.e2e.mean == pytest.approx(0.1 + 0.5 * 0.1 / (2 * (1 - 0.5)), rel=0.05)


def test_two_that_take_turns_are_two_queues_with_half_the_load() -> None:
    whole = simulate(ONE_BY_ONE, Shape(), QUEUE, seconds=600)
    halves = simulate(ONE_BY_ONE, Shape(2, 1, "turns"), replace(QUEUE, rate=10.0), seconds=600)
    # Every second arrival of a Poisson process is more even than one.
    assert 0.75 * whole.e2e.mean < halves.e2e.mean < whole.e2e.mean
    least = simulate(ONE_BY_ONE, Shape(2, 1, "least"), replace(QUEUE, rate=10.0), seconds=600)
    assert least.e2e.mean < halves.e2e.mean


def test_users_who_wait_are_as_many_as_come_for_as_long_as_they_wait() -> None:
    found = simulate(CARD, Shape(2), replace(CHATS, users=100), seconds=200, warm=50)
    assert found.done / found.seconds * (found.e2e.mean + CHATS.think) == pytest.approx(100, rel=0.05)


def test_an_answer_alone_takes_what_its_steps_take() -> None:
    load = Load(users=1, first=0, said=512, answer=11, turns=1, think=0.0, spread=0.0, mixed=False)
    times = replace(CARD, context=0.0, latency=0.004)
    found = simulate(times, Shape(), load, seconds=100, warm=0)
    prompt, step = 0.06, 0.02
    assert found.ttft.mean == pytest.approx(prompt + 0.004)
    assert found.itl.mean == pytest.approx(step)
    assert found.e2e.mean == pytest.approx(prompt + 10 * step + 0.004)


def test_a_prompt_beside_answers_takes_what_its_tokens_add() -> None:
    assert CARD.seconds(64, 0) == 0.024
    assert CARD.seconds(64, 448) == pytest.approx(0.024 + 0.06 - 0.022)
    assert CARD.seconds(0, 448 + 64) == 0.06
    assert CARD.seconds(0, 4096) == pytest.approx(0.2 + 2048 * (0.2 - 0.06) / (2048 - 512))


def test_a_long_prompt_is_computed_in_chunks() -> None:
    load = Load(users=1, first=0, said=1536, answer=1, turns=1, think=0.0, spread=0.0, mixed=False)
    times = replace(CARD, pair=1e-6, max_num_batched_tokens=512)
    found = simulate(times, Shape(), load, seconds=100, warm=0)
    assert found.ttft.mean == pytest.approx(3 * 0.06 + 1e-6 * 512 * (512 + 1024))


@pytest.mark.parametrize("seed", [0, 1])
def test_many_steps_at_once_are_as_one_by_one(seed: int) -> None:
    shape = Shape(4, 2, "sticky", lives=100.0)
    bulk, single = (
        simulate(CARD, shape, CHATS, seconds=60, warm=30, seed=seed, bulk=bulk).summary() for bulk in (True, False)
    )
    assert bulk == pytest.approx(single, rel=0.02)


def test_the_seed_decides() -> None:
    shape = Shape(3, 1, "least", lives=200.0)
    first, again, other = (simulate(CARD, shape, CHATS, seconds=40, warm=20, seed=seed).summary() for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_an_engine_that_is_lost_loses_its_requests_alone() -> None:
    clock, record = Clock(), Record()
    fleet = Fleet(clock, CARD, Shape(2, 1, "turns"), record)
    ends: dict[int, bool] = {}
    for user in range(6):
        fleet.submit(Job(user, 64, 50, (), (), lambda lost, user=user: ends.update({user: lost})))  # type: ignore[misc]
    clock.run(0.5)
    server = fleet.servers[0]
    lost = {job.user for job in (*server.engines[0]._queue, *(one for _, _, one in server.engines[0]._answers))}
    fleet.fail(server, server.engines[0])
    assert (len(lost), record.figures.lost) == (3, 3)
    assert not server.is_ready
    clock.run(10.0)
    assert {user for user, was_lost in ends.items() if was_lost} == lost
    assert set(ends) == set(range(6))
    clock.run(25.0)
    assert server.is_ready


def test_lost_engines_cost_what_they_had() -> None:
    found = simulate(CARD, Shape(8, 1, "least", lives=120.0), CHATS, seconds=300)
    assert 0 < found.lost < 0.05 * found.done
    assert found.refused == 0


def test_prefixes_are_found_where_they_were_computed() -> None:
    load = Load(users=20, first=2000, think=2.0, turns=8, answer=50)
    routed = simulate(CARD, Shape(4), load, seconds=60)
    turns = simulate(CARD, Shape(4, routes=False), load, seconds=60)
    assert routed.cached_tokens / routed.prompt_tokens > 1.5 * turns.cached_tokens / turns.prompt_tokens
    assert routed.ttft.mean < turns.ttft.mean
    sticky = simulate(CARD, Shape(4, 1, "sticky"), load, seconds=60)
    assert sticky.cached_tokens / sticky.prompt_tokens > 1.5 * turns.cached_tokens / turns.prompt_tokens


def test_a_request_waits_for_room_in_the_cache() -> None:
    clock, record, firsts = Clock(), Record(), []
    engine = SimulatedEngine(clock, replace(CARD, kv_tokens=1000), record)
    for user in range(2):
        engine.submit(Job(user, 500, 100, (), (), lambda lost: None, begun=lambda user=user: firsts.append(user)))  # type: ignore[misc]
    clock.run(0.5)
    assert (firsts, engine.running, engine.waiting) == ([0], 1, 1)
    clock.run(10.0)
    assert (firsts, record.figures.done) == ([0, 1], 2)
    with pytest.raises(ValueError, match="give it more"):
        engine.submit(Job(3, 1000, 1, (), (), lambda lost: None))


def test_servers_come_and_go_with_what_waits() -> None:
    few = replace(CARD, max_num_seqs=4)
    fixed = simulate(few, Shape(1), CHATS, seconds=400, warm=200)
    scaled = simulate(few, Shape(1), CHATS, seconds=400, warm=200, scale=Scale(1, 10, waiting=2, load=20.0))
    assert 1.5 < scaled.replica_seconds / scaled.seconds <= 10
    assert scaled.ttft.mean < 0.5 * fixed.ttft.mean
    idle = simulate(few, Shape(6, 1), replace(CHATS, users=1), seconds=100, warm=500, scale=Scale(2, 10))
    assert idle.replica_seconds / idle.seconds == pytest.approx(2)


def test_the_fewest_are_found() -> None:
    def run(replicas: int) -> object:
        return simulate(ONE_BY_ONE, Shape(replicas, 1), replace(QUEUE, rate=35.0), seconds=40, warm=10)

    replicas, figures = find_fewest(run, Target(ttft=1000, itl=1000), 64) or (0, None)
    assert replicas > 3, "four are loaded by 7/8"
    assert figures is not None
    assert figures.ttft.at(0.99) <= 1.0
    assert run(replicas - 1).ttft.at(0.99) > 1.0  # type: ignore[attr-defined]
    assert find_fewest(run, Target(ttft=1), 2) is None


def test_quantiles_are_those_of_what_was_added() -> None:
    spread = Spread()
    for value in range(1, 1001):
        spread.add(value / 1000)
    assert spread.at(0.5) == pytest.approx(0.5, rel=0.03)
    assert spread.at(0.99) == pytest.approx(0.99, rel=0.03)
    assert spread.mean == pytest.approx(0.5005)


def test_the_command_reads_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CARD.save(tmp_path / "steps.json")
    assert StepTimes.load_from(tmp_path / "steps.json") == CARD
    common = ["--steps", str(tmp_path / "steps.json"), "--users", "20", "--seconds", "60", "--warm", "30"]
    main(["run", *common, "--replicas", "2", "--per-server", "1", "--balancer", "sticky"])
    main(["size", *common, "--ttft-ms", "500", "--itl-ms", "100"])
    run, size = map(json.loads, capsys.readouterr().out.splitlines())
    assert run["started_with"] == run["replicas"] == 2
    assert size["started_with"] >= 1
    assert size["ttft_p99_ms"] <= 500
