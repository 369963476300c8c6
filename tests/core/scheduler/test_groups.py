"""Request groups and tenants: one place in line, and fair shares of the engine."""

from __future__ import annotations

import pytest

from lsv.kv.spec import KVGroup
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Priority
from lsv.scheduler.waiting import WaitingQueue
from lsv_base.errors import BadRequest, Overloaded
from lsv_testing.fakes.rig import Rig


def limits(**changes) -> Limits:
    return Limits(**{"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 128, **changes})


def ask(
    rig: Rig, id: int, *prompts: range, n: int = 1, max_tokens: int = 4, tenant: str = "", weight: float = 1.0,
    priority: int = 0, timeout: float | None = None, **params,
) -> RequestGroup:  # fmt: skip
    """A request group that arrives now; its sequences are numbered from ``id`` on."""
    sampling = SamplingParams(n=n, max_tokens=max_tokens, **params)
    spec = RequestSpec(
        prompts=tuple(Prompt(ids=tuple(prompt)) for prompt in prompts), sampling=sampling, request_id=f"r{id}",
        tenant=tenant, weight=weight, priority=priority, timeout=timeout,
    )  # fmt: skip
    group = RequestGroup(id, spec, arrival=rig.clock())
    rig.scheduler.add(group, rig.clock())
    return group


def admitted(rig: Rig) -> list[tuple[int, ...]]:
    """The prompts in the order in which their computation began."""
    return [begin.ids[: begin.prompt] for plan in rig.plans for begin in plan.begin]


# One group


@pytest.mark.row("F-346")
def test_every_sequence_of_a_group_is_computed():
    rig = Rig(limits=limits())
    ask(rig, 0, range(6), range(20, 25), n=3, max_tokens=2)
    assert rig.scheduler.counts.waiting == 6
    rig.run()
    assert sorted(rig.news) == list(range(6))
    assert all(rig.news[id][-1].finish is FinishReason.LENGTH for id in range(6))
    assert admitted(rig) == [tuple(range(6))] * 3 + [tuple(range(20, 25))] * 3
    assert rig.kv.usage == 0


def test_candidates_share_the_blocks_of_their_prompt():
    rig = Rig(limits=limits())
    ask(rig, 0, range(16), n=4)
    rig.run()
    computed = sum(count for plan in rig.plans for count in plan.rows.count if count > 1)
    assert computed < 2 * 16, "the others find what the first one has computed"


def test_a_prompt_is_scored_once_for_all_candidates():
    rig = Rig(limits=limits())
    ask(rig, 0, range(16), n=4, prompt_logprobs=1)
    rig.run()
    scored = [id for id, news in rig.news.items() if any(outcome.prompt_logprobs for outcome in news)]
    computed = sum(count for plan in rig.plans for count in plan.rows.count if count > 1)
    assert scored == [0]
    assert computed < 2 * 16 + 4, "the others read what the first one has computed"


def test_a_group_that_waits_costs_no_more_than_its_message():
    rig = Rig(limits=limits(max_num_seqs=2))
    ask(rig, 0, range(6), n=100)
    rig.step()
    rig.step()
    assert len(rig.scheduler._jobs) <= 3
    assert rig.scheduler.counts.waiting == 98


def test_a_group_takes_one_place_in_the_queue():
    rig = Rig(limits=limits(max_queue=2))
    ask(rig, 0, range(6), n=50)
    ask(rig, 100, range(6), n=50)
    with pytest.raises(Overloaded):
        ask(rig, 200, range(6))


def test_a_group_is_refused_as_a_whole():
    rig = Rig(limits=limits())
    with pytest.raises(BadRequest, match="200 tokens"):
        ask(rig, 0, range(5), range(200))
    assert not rig.scheduler.has_work
    assert not rig.scheduler._tenants


@pytest.mark.parametrize("steps", range(5))
def test_aborting_a_group_ends_what_runs_and_what_has_not_come_up(steps: int):
    rig = Rig(limits=limits(max_num_seqs=2, depth=2))
    ask(rig, 0, range(6), n=8, max_tokens=3)
    other = ask(rig, 50, range(30, 40))
    for _ in range(steps):
        rig.step()
    ended = {id for id, news in rig.news.items() if news[-1].finish}
    rig.note(rig.scheduler.abort([0]))
    assert {id for id, news in rig.news.items() if id < 8 and news[-1].finish} == set(range(8))
    assert all(rig.news[id][-1].finish is FinishReason.ABORT for id in set(range(8)) - ended)
    rig.run()
    assert rig.news[other.id][-1].finish is FinishReason.LENGTH
    assert (rig.kv.usage, rig.scheduler.counts.waiting) == (0, 0)


def test_a_deadline_holds_for_the_whole_group():
    rig = Rig(limits=limits(max_num_seqs=1))
    ask(rig, 0, range(6), n=3, max_tokens=50, timeout=5.0)
    rig.step()
    rig.clock.advance(5.0)
    rig.note(rig.scheduler.expire(rig.clock()))
    assert [rig.news[id][-1].finish for id in range(3)] == [FinishReason.ABORT] * 3
    assert not rig.scheduler.has_work


def test_requests_behind_a_large_group_take_turns_with_it():
    rig = Rig(limits=limits(max_num_seqs=1), prefix_caching=False)
    ask(rig, 0, range(6), n=4, max_tokens=1)
    ask(rig, 10, range(10, 16), max_tokens=1)
    ask(rig, 20, range(20, 26), max_tokens=1)
    rig.run()
    assert [ids[0] for ids in admitted(rig)] == [0, 0, 10, 0, 20, 0]


def test_a_preempted_sequence_goes_before_those_of_its_group_that_have_not_come_up():
    rig = Rig(limits=limits(max_num_seqs=3), num_blocks=8, prefix_caching=False)
    ask(rig, 0, range(8), n=6, max_tokens=12)
    rig.run()
    assert rig.scheduler.preemptions
    assert all(len(rig.tokens(id)) == 12 for id in range(6))


def test_requests_that_come_and_go_behind_a_head_that_can_not_enter_leave_nothing():
    rig = Rig(limits=limits(max_num_seqs=1, max_queue=10))
    ask(rig, 0, range(6), max_tokens=100)
    rig.step()
    ask(rig, 1, range(6))
    for id in range(2, 500):
        ask(rig, id, range(6))
        rig.note(rig.scheduler.abort([id]))
    (line,) = rig.scheduler._waiting._lines.values()
    assert len(line._heap) < 50
    assert len(rig.scheduler._waiting) == 1


# Tenants


def test_each_tenant_has_a_queue_of_its_own():
    rig = Rig(limits=limits(max_queue=3))
    for id in range(3):
        ask(rig, id, range(6), tenant="a")
    with pytest.raises(Overloaded):
        ask(rig, 10, range(6), tenant="a")
    ask(rig, 11, range(6), tenant="b")


def test_a_tenant_behind_ten_thousand_requests_of_another_gets_its_first_token_a_step_later():
    rig = Rig(limits=limits(max_num_seqs=4, max_queue=20_000), prefix_caching=False)
    for id in range(10_000):
        ask(rig, id, range(6), tenant="crowd", max_tokens=100)
    for _ in range(5):
        rig.step()
    ask(rig, 50_000, range(40, 60), tenant="one")
    rig.step()  # a slot is given up
    rig.step()
    assert rig.tokens(50_000)


def test_a_tenants_long_prompts_keep_nobody_waiting():
    rig = Rig(limits=limits(max_num_batched_tokens=8))
    ask(rig, 0, range(100), tenant="crowd")
    rig.step()
    rig.step()
    ask(rig, 1, range(100, 106), tenant="one")
    rig.step()
    assert rig.tokens(1)
    rig.run()
    assert rig.tokens(0)


def test_a_tenant_gives_up_slots_only_beyond_its_share():
    rig = Rig(limits=limits(max_num_seqs=4), prefix_caching=False)
    for id in range(8):
        ask(rig, id, range(6), tenant="a", max_tokens=60)
    for _ in range(3):
        rig.step()
    for id in range(10, 18):
        ask(rig, id, range(6), tenant="b", max_tokens=60)
    for _ in range(10):
        rig.step()
        held = [job.tenant.name for job in rig.scheduler._running]
    assert sorted(held) == ["a", "a", "b", "b"]
    assert rig.scheduler.preemptions == 2
    rig.run()
    assert all(len(rig.tokens(id)) == 60 for id in (*range(8), *range(10, 18)))


def test_blocks_are_given_up_as_slots_are():
    rig = Rig(limits=limits(max_num_seqs=8), num_blocks=16, prefix_caching=False)
    for id in range(6):
        ask(rig, id, range(12), tenant="a", max_tokens=20)
    for _ in range(3):
        rig.step()
    ask(rig, 10, range(20), tenant="b", max_tokens=1)
    for _ in range(4):
        rig.step()
    assert rig.tokens(10)
    rig.run()


def test_shares_follow_weights():
    rig = Rig(limits=limits(max_num_seqs=1, max_model_len=64), prefix_caching=False)
    for id in range(40):
        ask(rig, id, range(8), tenant="a", max_tokens=1, weight=3.0)
        ask(rig, 100 + id, range(50, 58), tenant="b", max_tokens=1)
    for _ in range(20):
        rig.step()
    order = [ids[0] for ids in admitted(rig)]
    assert (order.count(0), order.count(50)) == (15, 5)


def test_idle_time_saves_up_nothing():
    rig = Rig(limits=limits(max_num_seqs=1), prefix_caching=False)
    for id in range(20):
        ask(rig, id, range(8), tenant="a", max_tokens=1)
    for _ in range(10):
        rig.step()
    for id in range(100, 120):
        ask(rig, id, range(50, 58), tenant="b", max_tokens=1)
    before = len(admitted(rig))
    for _ in range(8):
        rig.step()
    order = [ids[0] for ids in admitted(rig)[before:]]
    assert (order.count(0), order.count(50)) == (4, 4)


def test_what_is_urgent_goes_before_what_is_fair():
    rig = Rig(policy=Priority(), limits=limits(max_num_seqs=1), prefix_caching=False)
    ask(rig, 0, range(6), tenant="a", max_tokens=1, priority=5)
    ask(rig, 1, range(10, 16), tenant="b", max_tokens=1, priority=0)
    ask(rig, 2, range(20, 26), tenant="b", max_tokens=1, priority=0)
    rig.run()
    assert [ids[0] for ids in admitted(rig)] == [10, 20, 0]


def test_tenants_are_forgotten_with_their_last_request():
    rig = Rig(limits=limits(), groups=(KVGroup(0, "full", (0,), 1),))
    for id in range(5):
        ask(rig, id, range(6), tenant=f"t{id}")
    assert len(rig.scheduler._tenants) == 5
    rig.run()
    assert not rig.scheduler._tenants


def test_an_empty_queue_has_no_head():
    assert WaitingQueue(lambda group, request: pytest.fail("nothing waits")).head() is None


def test_deadlines_of_requests_that_have_ended_do_not_pile_up():
    rig = Rig(limits=limits())
    ask(rig, 0, range(6), max_tokens=400, timeout=2000.0)
    for id in range(1, 300):
        ask(rig, id, range(6), max_tokens=1, timeout=1000.0)
        rig.note(rig.scheduler.abort([id]))
    assert len(rig.scheduler._deadlines) < 100
    rig.clock.advance(2000.0)
    rig.note(rig.scheduler.expire(rig.clock()))
    assert rig.news[0][-1].finish is FinishReason.ABORT
    assert not len(rig.scheduler._deadlines)


def test_a_running_request_that_is_refused_gives_its_blocks_back_at_once():
    """No step in flight will do so later, and the next request may need them to begin."""
    rig = Rig(num_blocks=10, limits=limits(max_num_batched_tokens=64, max_model_len=40))
    ask(rig, 0, range(36), max_tokens=3)
    rig.step()
    rig.note(rig.scheduler.refuse(0, "the engine goes to sleep"))
    assert rig.kv.usage == 0
    ask(rig, 1, range(50, 86), max_tokens=2)
    rig.run()
    assert rig.news[1][-1].finish is FinishReason.LENGTH
