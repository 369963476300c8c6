"""How many drafts are verified: what they bring, what they cost, when they stop and when they come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from lsv.capabilities import Padding
from lsv.kv.spec import STATE_WINDOW, KVGroup
from lsv.request.params import SamplingParams
from lsv.scheduler.drafts.costs import Costs
from lsv.scheduler.drafts.drafting import Drafting
from lsv.scheduler.drafts.step_times import StepTimes
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepPlan, StepResult
from lsv_testing.fakes import drafts as fake_drafts
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.rig import FULL, Rig
from lsv_testing.fakes.slot import FakeSlot
from lsv_testing.fakes.tokens import expected_output
from lsv_testing.fakes.worker import Draft

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=800, drafts=4)
HYBRID = (FULL[0], *(KVGroup(index, "state", (index,), 0, window=STATE_WINDOW, state_bytes=8) for index in (1, 2)))


def rig_of(draft: Draft, seconds: Callable[[int], float] | None = None, **changes) -> Rig:
    """A rig whose steps of so many tokens last ``seconds``."""
    rig = Rig(limits=msgspec.structs.replace(LIMITS, **changes), num_blocks=800, draft=draft)
    collect = rig.worker.collect

    def timed(timeout: float) -> StepResult:
        result = collect(timeout)
        tokens = rig.plans[result.step].tokens
        return result if seconds is None else msgspec.structs.replace(result, seconds=seconds(tokens))

    rig.worker.collect = timed
    return rig


def flat(tokens: int) -> float:
    """Weights are read once, however many tokens there are."""
    return 1.0


def steep(tokens: int) -> float:
    """Each token takes its time."""
    return 1.0 * tokens


def drafts_of(rig: Rig) -> list[int]:
    return [sum(plan.rows.drafts) for plan in rig.plans]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_right_drafts_are_tokens_of_the_same_step(depth: int, count: int):
    rig = rig_of(fake_drafts.right, depth=depth, drafts=count, adaptive_drafts=False)
    request = rig.ask(1, range(5), max_tokens=41)
    rig.run()
    assert rig.tokens(1) == request.output == expected_output(request, 800)
    ahead = depth - 1  # rows that were planned before anything had been drafted
    assert len(rig.plans) == 1 + ahead + -(-(40 - ahead) // (count + 1))
    counts = rig.scheduler.speculation
    assert counts is not None
    assert counts.accepted == counts.drafts == 40 - (len(rig.plans) - 1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_wrong_drafts_are_taken_back(depth: int):
    rig = rig_of(fake_drafts.wrong, depth=depth, adaptive_drafts=False)
    request = rig.ask(1, range(5), max_tokens=30)
    rig.run()
    assert rig.tokens(1) == expected_output(request, 800)
    counts = rig.scheduler.speculation
    assert (counts.accepted, counts.by_place) == (0, (0, 0, 0, 0))
    assert counts.drafts > 0


@pytest.mark.parametrize(("streams", "drafts"), [(2, True), (3, False)])
def test_nothing_is_drafted_that_no_step_could_verify(streams: int, drafts: bool):
    """Prompts of a padded layout hold rows with drafts, so many as there is a shape for; others are planned ahead."""
    padding = Padding(rows=(1, 2), queries=(1, 8, 16))
    rig = rig_of(fake_drafts.right, depth=2, adaptive_drafts=False, padding=padding, mixed_batches=False)
    for number in range(streams):
        rig.ask(number, range(5), max_tokens=20)
    rig.run()
    proposing = [plan for plan in rig.plans if len(plan.rows) == streams and any(plan.rows.propose or ())]
    assert bool(proposing) == any(drafts_of(rig)) == drafts


def test_an_answer_ends_within_its_drafts():
    rig = rig_of(fake_drafts.right, adaptive_drafts=False)
    plain = expected_output(rig.ask(1, range(5), max_tokens=40), 800)
    rig.run()
    stop = next(token for token in plain[7:] if plain.index(token) >= 7)
    sampling = SamplingParams(temperature=0.0, max_tokens=40)
    request = rig.add(make_request(2, tuple(range(5)), sampling=sampling, stop_ids=(stop,)))
    rig.run()
    assert request.output == plain[: plain.index(stop) + 1]
    drafts, accepted = request.drafted
    assert accepted < len(request.output) < accepted + len(rig.plans)
    assert drafts > accepted, "those behind the end were for nothing"
    counts = rig.scheduler.speculation
    assert counts.emitted < counts.accepted + counts.rows, "the last row ended among its drafts"


@pytest.mark.row("F-303")
def test_long_sequences_are_not_drafted_for():
    rig = rig_of(fake_drafts.right, adaptive_drafts=False, drafting_length=20)
    request = rig.ask(1, range(5), max_tokens=40)
    rig.run()
    assert request.output == expected_output(request, 800)
    steps = [plan.rows for plan in rig.plans[1:]]
    assert max(rows.start[0] + rows.count[0] for rows in steps if rows.count[0] > 1) == 20


@pytest.mark.row("F-304")
def test_requests_whose_prompts_are_being_computed_are_under_way():
    rig = rig_of(fake_drafts.right, adaptive_drafts=False, drafting_rows=2)
    plan = rig.scheduler.plan
    crowds: list[int] = []

    def watched(now: float) -> StepPlan | None:
        planned = plan(now)
        if planned is not None and any(planned.rows.drafts):
            crowds.append(rig.scheduler.counts.running)
        return planned

    rig.scheduler.plan = watched
    for id in range(3):
        rig.ask(id, range(1 + 300 * id), max_tokens=60)
    rig.run()
    assert max(crowds) <= 2


def test_drafts_cost_nothing_when_they_are_wrong():
    """Where a step is as long as it has tokens, they are given up; and never more than a few were tried."""
    rig = rig_of(fake_drafts.wrong, steep)
    rig.ask(1, range(5), max_tokens=200)
    rig.run()
    assert sum(drafts_of(rig)) < 20
    assert sum(drafts_of(rig)[20:]) == 0


def test_drafts_that_are_right_are_not_worth_a_token_each():
    rig = rig_of(fake_drafts.right, steep)
    rig.ask(1, range(5), max_tokens=200)
    rig.run()
    assert sum(plan.tokens for plan in rig.plans[20:]) <= 1.05 * len(rig.tokens(1))


def test_drafts_that_are_right_and_free_are_all_taken():
    rig = rig_of(fake_drafts.right, flat)
    rig.ask(1, range(5), max_tokens=300)
    rig.run()
    assert len(rig.plans) < 300 / 4


@pytest.mark.row("F-364")
def test_drafts_that_take_longer_to_make_than_a_token_are_hardly_made():
    rig = rig_of(fake_drafts.right, flat)
    collect = rig.worker.collect

    def slow(timeout: float) -> StepResult:
        result = collect(timeout)
        made = 2.0 * sum(rig.plans[result.step].rows.propose)
        return msgspec.structs.replace(result, seconds=result.seconds + made, drafting=made)

    rig.worker.collect = slow
    rig.ask(1, range(5), max_tokens=400)
    rig.run()
    assert sum(sum(plan.rows.propose) for plan in rig.plans[10:]) < 400 / 40


def test_nothing_is_asked_for_where_requests_are_many():
    rig = rig_of(fake_drafts.right, flat, drafting_rows=1)
    for id in (1, 2):
        rig.ask(id, range(5), max_tokens=50)
    rig.run()
    assert sum(sum(plan.rows.propose) for plan in rig.plans[1:]) == 0


def test_who_finds_nothing_is_hardly_asked():
    """A look-up that finds nothing costs its time, however right it was when it found something."""
    rig = rig_of(lambda slot, most: fake_drafts.right(slot, most) if len(slot.ids) < 60 else (), flat)
    rig.ask(1, range(5), max_tokens=400)
    rig.run()
    asked = [any(plan.rows.propose) for plan in rig.plans if plan.rows.start[0] > 100]
    assert 0 < sum(asked) < len(asked) / 8


def test_steps_that_now_and_then_are_short_do_not_count_as_short():
    """On average a step with a draft takes longer than what it brings is worth, and the least of some never does."""
    draw = random.Random(2)
    rig = rig_of(half_right(1), lambda tokens: 1.0 if tokens == 1 or draw.random() < 0.5 else 2.6)
    rig.ask(1, range(5), max_tokens=600)
    rig.run()
    assert sum(drafts_of(rig)[60:]) < 0.1 * 600


def test_a_step_is_timed_now_and_then_while_nothing_pays():
    """Most steps are to take no time of the scheduler's; but what has changed must be seen."""
    learnt: list[int] = []

    def timed(tokens: int) -> float:
        return 1.0 if tokens == 1 else 9.0

    rig = rig_of(fake_drafts.wrong, timed)
    learn = Costs.learn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Costs, "learn", lambda *given: (learnt.append(given[1].step), learn(*given)))
        rig.ask(1, range(5), max_tokens=400)
        rig.run()
    later = [step for step in learnt if step > 100]
    assert 0 < len(later) < 300 / 2


def test_who_was_busy_for_a_while_drafts_again():
    """What steps with drafts took then says nothing of later; those without were not seen meanwhile."""
    step = 0

    def seconds(tokens: int) -> float:
        nonlocal step
        step += 1
        return (1.0 + 0.1 * (tokens - 1)) * (6.0 if 100 < step < 140 else 1.0)

    rig = rig_of(fake_drafts.right, seconds)
    rig.ask(1, range(5), max_tokens=780)
    rig.ask(2, range(5), max_tokens=780)
    rig.run()
    assert len(rig.plans) < 780 / 5 + 60


def test_a_step_without_drafts_is_taken_now_and_then_where_they_pay():
    """Or nobody would see that steps without became shorter than those with drafts are worth."""
    seen: list[int] = []

    def seconds(tokens: int) -> float:
        seen.append(tokens)
        return (3.0 if len(seen) < 150 else 0.5) if tokens == 1 else 3.0

    rig = rig_of(half_right(3), seconds)
    rig.ask(1, range(5), max_tokens=780)
    rig.run()
    assert sum(drafts_of(rig)[:150]) > 75
    assert sum(drafts_of(rig)[400:]) < 20


def test_no_step_is_tried_that_is_much_larger_than_any_before():
    rig = rig_of(fake_drafts.wrong, steep, drafts=16, max_num_seqs=8, max_num_batched_tokens=500)
    for number in range(8):
        rig.ask(number, range(5), max_tokens=100)
    rig.run()
    assert max(drafts_of(rig)) <= 8


def test_drafts_come_back_when_they_are_right_again():
    """While none are verified, proposals are held against what comes."""

    def turning(slot: FakeSlot, most: int):
        good = len(slot.ids) > 150
        return fake_drafts.right(slot, most) if good else fake_drafts.wrong(slot, most)

    rig = rig_of(turning, lambda tokens: 1.0 + 0.1 * tokens)
    rig.ask(1, range(5), max_tokens=400)
    rig.run()
    before = [plan for plan in rig.plans if plan.rows.start[0] < 150]
    after = [plan for plan in rig.plans if plan.rows.start[0] > 180]
    assert sum(sum(plan.rows.drafts) for plan in before[40:]) == 0
    assert len(after) < (400 - 175) / 3


def test_the_likely_ones_go_first():
    """A request whose drafts are right has them verified beside one whose drafts are not."""

    def draft(slot: FakeSlot, most: int):
        return (fake_drafts.right if slot.begin.prompt == 5 else fake_drafts.wrong)(slot, most)

    rig = rig_of(draft, lambda tokens: 1.0 + 0.15 * tokens)
    rig.ask(1, range(5), max_tokens=200)
    rig.ask(2, range(6), max_tokens=200)
    rig.run()
    counts = rig.scheduler.speculation
    assert counts.accepted > 0.8 * counts.drafts


@pytest.mark.row("F-364")
def test_with_many_requests_nobody_drafts():
    rig = rig_of(fake_drafts.right, drafting_rows=1, adaptive_drafts=False)
    rig.ask(1, range(5), max_tokens=20)
    rig.ask(2, range(7), max_tokens=20)
    rig.run()
    assert sum(drafts_of(rig)) == 0


def test_requests_with_logits_processors_are_left_alone():
    rig = rig_of(fake_drafts.right, adaptive_drafts=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=20, logits_processors={"some": None})
    rig.add(make_request(1, tuple(range(5)), sampling=sampling))
    rig.run()
    assert sum(drafts_of(rig)) == 0
    assert not any(plan.rows.propose for plan in rig.plans)


def test_drafts_that_a_grammar_refuses_are_wrong():
    """None is verified, and soon none is made but guesses."""
    rig = rig_of(fake_drafts.right, flat)
    request = rig.ask(1, range(5), max_tokens=300)
    rig.run(lambda: rig.scheduler.cut_drafts(1, lambda drafts: (0, True)))
    assert request.output == expected_output(request, 800)
    assert sum(drafts_of(rig)) == 0
    assert sum(sum(plan.rows.propose) for plan in rig.plans[40:]) <= 260 / 4


def test_a_refused_draft_counts_once_those_before_it_were_right():
    counts = []
    for refused in (False, True):
        rig = rig_of(fake_drafts.right, adaptive_drafts=False)
        rig.ask(1, range(5), max_tokens=60)
        rig.run(lambda: rig.scheduler.cut_drafts(1, lambda drafts: (min(2, len(drafts)), refused)))  # noqa: B023
        assert max(drafts_of(rig)) == 2
        counts.append(rig.scheduler._speculation._usual.chance)
    assert counts[0] > 0.9
    assert 0.6 < counts[1] < 0.75


def test_nothing_more_is_drafted_where_a_grammar_cannot_look_ahead():
    rig = rig_of(fake_drafts.right, adaptive_drafts=False)
    request = rig.ask(1, range(5), max_tokens=30)
    rig.run(lambda: rig.scheduler.cut_drafts(1, lambda drafts: None))
    assert request.output == expected_output(request, 800)
    assert sum(drafts_of(rig)) == 0
    assert [bool(plan.rows.propose) for plan in rig.plans[:3]] == [True, False, False]


def test_a_plan_without_drafts_is_the_same_as_ever():
    rig = Rig()
    rig.ask(1, range(5), max_tokens=20)
    rig.run()
    assert all(plan.rows.drafts == plan.rows.propose == () for plan in rig.plans)
    assert rig.scheduler.speculation is None


def test_the_chance_follows_what_happens():
    drafting, rng = Drafting(), random.Random(1)
    assert drafting.chance == 0.5
    for _ in range(100):
        right = next((place for place in range(5) if rng.random() > 0.8), 5)
        drafting.note(right, 5)
    assert 0.6 < drafting.chance < 0.95
    for _ in range(30):
        drafting.note(0, 5)
    assert drafting.chance < 0.2


def test_times_lie_on_a_line_between_what_is_known():
    times = StepTimes()
    for step, (tokens, seconds) in enumerate(((1, 1.0), (1, 9.0), (5, 3.2), (5, 3.0), (5, 4.0))):
        times.learn(tokens, seconds, step)
    assert times.of(1) == 0.0  # two steps are too few
    times.learn(1, 1.2, 5)
    assert times.of(1) == 1.2  # the middle one of three
    assert times.of(3) == pytest.approx(2.2)
    assert times.of(50) == 3.2
    times.learn(1, 1.5, 1200)
    times.forget(1200)
    assert times.of(50) == times.of(1) < 1.4


def test_times_may_go_on_rising():
    """So no size has to be tried that is much too large."""
    times = StepTimes(rising=True)
    for step in range(3):
        times.learn(9, 2.0, step)
    assert times.of(30) == 2.0
    for step in range(3):
        times.learn(11, 3.0, step)
    assert times.of(10) == 2.5
    assert times.of(16) == 5.5


def test_times_are_those_of_the_latest_steps_on_average():
    """Neither of the shortest ones, nor of those that last long because the machine was busy."""
    times, draw = StepTimes(), random.Random(1)
    for step in range(400):
        times.learn(6, 100.0 if step % 20 == 7 else draw.choice((1.0, 1.6)), step)
    assert 1.2 < times.of(6) < 1.5
    for step in range(40):
        times.learn(6, 5.0, step)
    assert times.of(6) > 4.0


def half_right(seed: int) -> Draft:
    """Of what it drafts first, every second one is right."""
    rng = random.Random(seed)

    def draft(slot: FakeSlot, most: int) -> Sequence[int]:
        return (fake_drafts.right if rng.random() < 0.5 else fake_drafts.wrong)(slot, most)[:1]

    return draft


def test_the_first_draft_of_a_step_may_cost_more_than_all_others():
    """With any drafts a step takes nearly twice as long, with four no longer than with one: none are even made."""
    rig = rig_of(half_right(1), lambda tokens: 1.0 if tokens <= 2 else 1.8)
    for number in (1, 2):
        rig.ask(number, range(5), max_tokens=400)
    rig.run()
    assert sum(drafts_of(rig)[40:]) <= 0.005 * 800  # they are tried again, should it be otherwise by now
    asked = [any(plan.rows.propose) for plan in rig.plans[40:]]
    assert sum(asked) < len(asked) / 2  # guesses, which are free here


def test_guesses_of_all_rows_are_made_in_one_step():
    """What takes time is making the first."""
    rig = rig_of(fake_drafts.wrong, steep)
    collect, spent = rig.worker.collect, list[float]()

    def slow(timeout: float) -> StepResult:
        result = collect(timeout)
        making = 2.0 * any(rig.plans[result.step].rows.propose)
        spent.append(making)
        return msgspec.structs.replace(result, seconds=result.seconds + making, drafting=making)

    rig.worker.collect = slow
    for number in range(4):
        rig.ask(number, range(5 + number), max_tokens=700)
    rig.run()
    assert sum(spent[40:]) <= 0.02 * 4.0 * len(spent[40:])
    guesses = [sum(map(bool, plan.rows.propose)) for plan in rig.plans[40:-40] if any(plan.rows.propose)]
    assert guesses
    assert min(guesses) == 4


def test_steps_without_a_time_of_their_own_teach_nothing() -> None:
    times = StepTimes()
    for step, seconds in enumerate((0.0, 0.5, 0.5, 0.5)):
        times.learn(2, seconds, step)
    assert times.of(2) == 0.5


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("luck", ["right", "wrong", "mixed"])
def test_recurrent_states_go_on_behind_the_last_token_that_stands(depth: int, count: int, luck: str):
    """The worker looks at every state that a row goes on from, and at those that others find."""
    limits = msgspec.structs.replace(LIMITS, depth=depth, drafts=count, adaptive_drafts=False)
    draft = {"right": fake_drafts.right, "wrong": fake_drafts.wrong, "mixed": fake_drafts.mixed(3)}[luck]
    rig = Rig(limits=limits, groups=HYBRID, num_blocks=800, draft=draft)
    for number in range(3):
        rig.ask(number, range(5 + number), max_tokens=60)
    rig.run()
    for number in range(3):
        assert rig.tokens(number) == expected_output(rig.news[number][0].request, 800)
    assert sum(drafts_of(rig)) > 0
    assert rig.kv.usage == 0


def test_nobody_waits_for_room_that_states_of_drafts_take():
    """Without drafts three requests run side by side; with them, too, and what is left is drafted with."""
    most = {}
    for count in (0, 4):
        limits = msgspec.structs.replace(LIMITS, drafts=count, adaptive_drafts=False, max_preemptions=9)
        rig = Rig(limits=limits, groups=HYBRID, num_blocks=48, draft=fake_drafts.wrong, prefix_caching=False)
        for number in range(4):
            rig.ask(number, range(20), max_tokens=8)
        rig.run()
        most[count] = max(len(plan.rows) for plan in rig.plans)
        assert rig.scheduler.preemptions == 0
    assert most[0] == most[4]
