"""The fake worker catches wrong plans, and faults reach whom they should."""

from __future__ import annotations

import msgspec
import pytest

from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import Begin, Grown, Kind, Rows, StepPlan
from lsv_base.errors import EngineDied
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.faults import FaultInjector, Faults
from lsv_testing.fakes.rig import FULL, Rig
from lsv_testing.fakes.tokens import expected_output
from lsv_testing.fakes.worker import FakeWorker

PLAN = StepPlan(
    step=0,
    kind=Kind.PREFILL,
    begin=(
        Begin(0, (1, 2, 3, 4, 5), 5, SamplingParams()),
        Begin(1, (6, 7, 8), 3, SamplingParams()),
    ),
    rows=Rows((0, 1), (0, 0), (5, 3), (0, 0), (True, True)),
    blocks=(Grown(0, 0, (1, 2)), Grown(1, 0, (3,))),
)
NEXT = StepPlan(step=1, kind=Kind.DECODE, rows=Rows((0, 1), (5, 3), (1, 1), (0, 0), (True, True)))


def worker(**changes) -> FakeWorker:
    bounds = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 64, "depth": 2, **changes}
    return FakeWorker(Limits(**bounds), FULL, 8, 4)


def changed(plan: StepPlan, **rows) -> StepPlan:
    return msgspec.structs.replace(plan, rows=msgspec.structs.replace(plan.rows, **rows))


def test_right_plans_pass():
    right = worker()
    right.submit(PLAN)
    right.submit(NEXT)
    assert [len(tokens) for tokens in right.collect(1).tokens] == [1, 1]
    assert right.collect(1).step == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(NEXT, start=(6, 3)), "skipped or computed twice"),
        (changed(NEXT, count=(2, 1)), "nobody knows"),
        (changed(NEXT, wants_logits=(False, True)), "last known token"),
        (changed(NEXT, slot=(0, 0)), "two rows"),
        (changed(NEXT, drafts=(1, 0)), "a draft that nobody made"),
        (msgspec.structs.replace(NEXT, kind=Kind.MIXED), "calls itself"),
        (msgspec.structs.replace(NEXT, begin=PLAN.begin[:1]), "taken"),
        (msgspec.structs.replace(NEXT, blocks=(Grown(0, 0, (9,)),)), "does not exist"),
        (msgspec.structs.replace(NEXT, rows=Rows()), "empty step"),
    ],
)
def test_wrong_plans_are_caught(wrong, message):
    strict = worker()
    strict.submit(PLAN)
    with pytest.raises(AssertionError, match=message):
        strict.submit(wrong)


def test_budget_is_checked():
    with pytest.raises(AssertionError, match="over its budget"):
        worker(max_num_batched_tokens=7).submit(PLAN)


def test_shared_block_is_not_written():
    wrong = msgspec.structs.replace(PLAN, blocks=(Grown(0, 0, (1, 2)), Grown(1, 0, (1,))))
    with pytest.raises(AssertionError, match="another request uses it"):
        worker().submit(wrong)


def test_block_is_not_reused_while_its_plan_is_in_flight():
    strict, reuse = worker(), msgspec.structs.replace(PLAN, step=1, end=(0, 1))
    strict.submit(PLAN)
    with pytest.raises(AssertionError, match="another request uses it"):
        strict.submit(reuse)
    relaxed = worker()
    relaxed.submit(PLAN)
    relaxed.collect(1)
    relaxed.submit(reuse)


def test_claimed_prefix_must_be_in_the_blocks():
    strict = worker()
    strict.submit(PLAN)
    strict.collect(1)
    entering = Begin(1, (1, 2, 3, 9, 9), 5, SamplingParams())
    wrong = StepPlan(
        step=1,
        kind=Kind.PREFILL,
        end=(1,),
        begin=(entering,),
        rows=Rows((1,), (4,), (1,), (0,), (True,)),
        blocks=(Grown(1, 0, (1, 4)),),
    )
    with pytest.raises(AssertionError, match="does not hold the prefix"):
        strict.submit(wrong)


def test_failed_row_ends_only_its_request():
    rig = Rig()
    rig.worker = FaultInjector(rig.worker, Faults(fail={2: {0: "not finite"}}))
    first, second = rig.ask(1, range(5)), rig.ask(2, range(50, 55))
    rig.run()
    last = rig.news[1][-1]
    assert (last.finish, last.error) == (FinishReason.ERROR, "not finite")
    assert len(first.output) == 2
    assert second.output == expected_output(second, rig.scheduler.longest)
    assert rig.kv.usage == 0


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(die={1}), "died in step 1"),
        (Faults(drop={1}), "no result within 5 s"),
        (Faults(delay={1: 9.0}), "no result within 5 s"),
    ],
)
def test_dead_and_hanging_workers(faults, message):
    clock = FakeClock()
    faulty = FaultInjector(worker(), faults, sleep=clock.advance)
    faulty.submit(PLAN)
    faulty.submit(NEXT)
    assert faulty.collect(5.0).step == 0
    with pytest.raises(EngineDied, match=message):
        faulty.collect(5.0)


def test_late_results_come():
    clock = FakeClock()
    faulty = FaultInjector(worker(), Faults(delay={0: 2.0}), sleep=clock.advance)
    faulty.submit(PLAN)
    assert faulty.collect(5.0).step == 0
    assert clock() == 2.0
