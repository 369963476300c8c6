"""Adapters in the scheduler: no more at a time than there are slots, nobody blocked, nobody starved."""

from __future__ import annotations

import pytest

from lsv.request.adapter import Adapter
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv_testing.fakes.rig import Rig


def rig_with(slots: int, *, num_blocks: int = 64, **changes) -> Rig:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 128, "adapter_slots": slots}
    return Rig(limits=Limits(**{**given, **changes}), num_blocks=num_blocks)


def ask(rig: Rig, id: int, adapter: int = 0, *, first: int | None = None, max_tokens: int = 4) -> None:
    """A request of six tokens for adapter number ``adapter``, 0 for none, that arrives now."""
    start = id if first is None else first
    spec = RequestSpec(
        prompts=(Prompt(ids=tuple(range(start, start + 6))),),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        request_id=f"r{id}",
    )
    asked = Adapter(adapter, f"a{adapter}", "", bytes([adapter]) * 32) if adapter else None
    rig.scheduler.add(RequestGroup(id, spec, arrival=rig.clock(), adapter=asked), rig.clock())


def check_slots(rig: Rig, slots: int) -> dict[int, list[int]]:
    """That each step goes through what its slots hold, which no row in between changes; the steps of each request."""
    held: dict[int, int] = {}
    running: dict[int, tuple[int, int | None]] = {}
    steps: dict[int, list[int]] = {}
    for plan in rig.plans:
        for slot in plan.end:
            running.pop(slot, None)
        for entering in plan.adapters:
            users = [worker for worker, (_, adapter) in running.items() if adapter == entering.slot]
            assert not users, "an adapter in use was replaced"
            held[entering.slot] = entering.adapter
        for begin in plan.begin:
            running[begin.slot] = (begin.ids[0], begin.adapter)
        used = {running[slot][1] for slot in plan.rows.slot} - {None}
        assert len(used) <= slots
        for slot in plan.rows.slot:
            steps.setdefault(running[slot][0], []).append(plan.step)
    return steps


@pytest.mark.row("F-344")
def test_a_second_adapter_waits_for_the_first() -> None:
    rig = rig_with(1)
    ask(rig, 10, 1)
    ask(rig, 20, 2)
    ask(rig, 30, 0)
    ask(rig, 40, 1)
    rig.run()
    steps = check_slots(rig, 1)
    assert steps[30][0] == steps[40][0] == steps[10][0], "what needs no other slot waits for nobody"
    assert steps[20][0] > max(steps[10][-1], steps[40][-1])
    assert all(len(rig.tokens(id)) == 4 for id in (10, 20, 30, 40))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_many_adapters_in_few_slots(depth: int) -> None:
    rig = rig_with(2, depth=depth, max_num_seqs=3)
    for number in range(24):
        ask(rig, 10 * number, number % 7, max_tokens=2 + number % 3)
    rig.run()
    check_slots(rig, 2)
    assert all(len(rig.tokens(10 * number)) == 2 + number % 3 for number in range(24))


def test_a_stream_of_requests_starves_no_other_adapter() -> None:
    rig = rig_with(1)
    ask(rig, 1000, 1)
    ask(rig, 1001, 2)
    came = 0

    def another() -> None:
        nonlocal came
        if came < 200 and 1001 not in rig.news:
            came += 1
            ask(rig, 10 * came, 1)

    rig.run(another)
    assert came < 20, "it was overtaken for ever"


def test_an_adapter_stays_in_its_slot_until_another_needs_it() -> None:
    rig = rig_with(2)
    for id, adapter in enumerate((1, 2, 1, 3, 1, 2)):
        ask(rig, id, adapter, first=10 * id)
        rig.run()
    entered = [(entering.slot, entering.adapter) for plan in rig.plans for entering in plan.adapters]
    assert entered == [(0, 1), (1, 2), (1, 3), (1, 2)], "of those nobody uses, the least recently used goes"


def test_prefixes_are_those_of_an_adapter() -> None:
    rig = rig_with(2)
    for id, adapter in enumerate((0, 1, 2, 1, 0)):
        ask(rig, id, adapter, first=5)
        rig.run()
    assert rig.scheduler.counts.prefix_hits == 8


def test_requests_that_end_while_they_wait_leave_no_trace() -> None:
    rig = rig_with(1)
    ask(rig, 10, 1, max_tokens=8)
    ask(rig, 20, 2)
    ask(rig, 30, 3)
    rig.step()
    assert {adapter.id for adapter in rig.scheduler.adapters} == {1, 2, 3}
    rig.note(rig.scheduler.abort([20, 30]))
    ask(rig, 40, 3)
    rig.run()
    assert len(rig.tokens(40)) == 4
    assert not rig.scheduler.adapters


def test_preempted_requests_come_back_to_their_adapters() -> None:
    rig = rig_with(2, num_blocks=10)
    for number in range(6):
        ask(rig, 10 * number, 1 + number % 3, max_tokens=12)
    rig.run()
    check_slots(rig, 2)
    assert all(len(rig.tokens(10 * number)) == 12 for number in range(6))
