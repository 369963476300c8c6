"""Several plans in flight: what is planned ahead, what waits, what is dropped."""

from __future__ import annotations

import pytest

from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason, Status
from lsv.scheduler.limits import Limits
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.tokens import expected_output


def rig_of(depth: int, **changes) -> Rig:
    bounds = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "depth": depth}
    rig_options = {name: changes.pop(name) for name in ("num_blocks", "prefix_caching") if name in changes}
    return Rig(limits=Limits(**{**bounds, **changes}), **rig_options)


@pytest.mark.row("F-338")
def test_rows_are_planned_before_their_tokens_are_known():
    rig = rig_of(4)
    rig.ask(1, range(5))
    starts = [rig.plan().rows.start for _ in range(4)]
    assert starts == [(0,), (5,), (6,), (7,)]
    assert rig.plan() is None
    assert rig.scheduler.in_flight == 4


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_length_limits_are_never_overrun(depth):
    rig = rig_of(depth)
    rig.ask(1, range(5), max_tokens=3)
    rig.run()
    assert sum(plan.tokens for plan in rig.plans) == 5 + 2


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_stop_wastes_at_most_a_row_per_plan_in_flight(depth):
    prompt = tuple(range(5))
    plain = Rig().ask(1, prompt, max_tokens=30)
    stop = expected_output(plain, 64)[6]
    rig = rig_of(depth)
    request = rig.add(make_request(1, prompt, sampling=SamplingParams(max_tokens=30), stop_ids=(stop,)))
    rig.run()
    assert request.output[-1] == stop
    assert rig.tokens(1) == request.output
    assert sum(plan.tokens for plan in rig.plans) <= 5 + len(request.output) - 1 + depth - 1


@pytest.mark.parametrize("depth", [2, 4])
def test_blocks_and_slot_stay_until_the_last_row_in_flight_has_settled(depth):
    rig = rig_of(depth, num_blocks=6)
    rig.ask(1, range(5), max_tokens=15)
    for _ in range(depth):
        rig.plan()
    (outcome,) = rig.scheduler.abort([1])
    assert outcome.finish is FinishReason.ABORT
    for _ in range(depth):
        rig.scheduler.check()
        assert rig.kv.usage > 0
        assert rig.settle() == ()
    assert rig.kv.usage == 0
    rig.ask(2, range(50, 55), max_tokens=2)
    assert rig.plan().end == (0,)


def test_aborted_blocks_are_not_given_to_others_while_in_flight():
    rig = rig_of(2, num_blocks=4)
    rig.ask(1, range(12), max_tokens=4)
    rig.plan()
    rig.note(rig.scheduler.abort([1]))
    rig.ask(2, range(50, 62), max_tokens=4)
    assert rig.plan() is None
    rig.settle()
    assert rig.plan() is not None


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_preemption_waits_for_rows_in_flight(depth):
    rig = rig_of(depth, num_blocks=8, prefix_caching=False)
    requests = [rig.ask(id, range(20 * id, 20 * id + 9), max_tokens=20) for id in range(3)]
    rig.run()
    assert rig.scheduler.counts.preemptions > 0
    for request in requests:
        assert rig.tokens(request.id) == request.output == expected_output(request, rig.scheduler.longest)


def test_nobody_is_preempted_for_blocks_that_are_on_their_way_back():
    rig = rig_of(2, num_blocks=8, max_preemptions=3)
    for id in (1, 2):
        rig.ask(id, range(20 * id, 20 * id + 12), max_tokens=12)
        rig.step()
    while rig.kv.unreserved:
        rig.step()
    rig.plan()
    rig.note(rig.scheduler.abort([2]))
    rig.run()
    assert rig.scheduler.counts.preemptions == 0
    assert len(rig.tokens(1)) == 12


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_client_finish_while_rows_are_in_flight(depth):
    rig = rig_of(depth)
    request = rig.ask(1, range(5), max_tokens=40)
    for _ in range(3):
        rig.step()
    assert rig.scheduler.finish(1, 1, FinishReason.STOP) is not None
    while rig.scheduler.in_flight:
        rig.settle()
    assert len(request.output) == 1
    assert request.status is Status.FINISHED
    assert (rig.scheduler.in_flight, rig.kv.usage) == (0, 0)


def test_between_stages_plans_share_the_decoding_rows_out():
    rig = rig_of(2, stages=2)
    for id in range(4):
        rig.ask(id, range(10 * id, 10 * id + 4), max_tokens=6)
    rig.step()
    first, second = rig.plan(), rig.plan()
    assert (len(first.rows), len(second.rows)) == (2, 2)
    assert not set(first.rows.slot) & set(second.rows.slot)
    rig.settle()
    assert set(rig.plan().rows.slot) == set(first.rows.slot)
    rig.run()
    assert [len(rig.tokens(id)) for id in range(4)] == [6] * 4


def test_between_stages_plans_share_prompts_out():
    """A step of all of them would keep each stage waiting for the other."""
    rig = rig_of(2, stages=2, max_num_batched_tokens=2048, max_model_len=1100, num_blocks=1200)
    rig.ask(1, range(700))
    for id in (2, 3):
        rig.ask(id, range(id, 250 + id))
    rig.plan()
    rig.plan()
    assert [plan.rows.count for plan in rig.plans] == [(300,), (225,)]
    rig.run()
    assert len([plan for plan in rig.plans if max(plan.rows.count, default=0) > 1]) == 7
    alone = rig_of(1, max_num_batched_tokens=2048, max_model_len=1100, num_blocks=1200)
    alone.ask(1, range(1000))
    assert alone.plan().rows.count == (1000,)


def test_between_stages_long_queues_fill_steps():
    rig = rig_of(2, stages=2, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=256, num_blocks=2000)
    for id in range(24):
        rig.ask(id, range(id, id + 100))
    assert sum(rig.plan().rows.count) == 512


def test_between_stages_no_row_is_planned_before_its_last_token_is_known():
    rig = rig_of(3, stages=3, max_num_batched_tokens=4)
    rig.ask(1, range(9), max_tokens=3)
    assert [rig.plan().rows.start for _ in range(3)] == [(0,), (4,), (8,)]
    rig.settle()
    rig.settle()
    assert rig.plan() is None
    rig.settle()
    assert rig.plan().rows.start == (9,)
    assert rig.plan() is None
