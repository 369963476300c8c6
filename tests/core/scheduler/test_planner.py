"""How steps are planned: by parts that belong to the scheduler, and without work for what nobody uses yet."""

from __future__ import annotations

from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Priority
from lsv_testing.fakes.rig import Rig


def crowded(**changes: object) -> Rig:
    """Three requests of which one is preempted on the way."""
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, **changes)
    rig = Rig(num_blocks=8, prefix_caching=False, limits=limits)
    for id in range(3):
        rig.ask(id, range(20 * id, 20 * id + 9), max_tokens=20)
    return rig


def test_the_planner_keeps_no_state_of_its_own() -> None:
    for mixed in (True, False):
        rig = crowded(mixed_batches=mixed)
        given = dict(vars(rig.scheduler._planner))
        rig.run()
        assert rig.scheduler.preemptions > 0
        assert vars(rig.scheduler._planner) == given


def test_running_requests_come_before_a_waiting_one_of_higher_priority() -> None:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64)
    rig = Rig(policy=Priority(), limits=limits)
    rig.ask(0, range(5), priority=1)
    rig.step()
    rig.ask(1, range(20, 32), priority=1)
    rig.step()
    rig.ask(2, range(50, 53), priority=0)
    plan = rig.plan()
    assert (plan.rows.slot, plan.rows.count) == ((0, 1, 2), (1, 5, 2))
    assert [begin.slot for begin in plan.begin] == [2]


def test_a_plan_without_speculation_has_no_column_of_drafts() -> None:
    rig = crowded()
    rig.run()
    assert {plan.rows.drafts for plan in rig.plans} == {()}
