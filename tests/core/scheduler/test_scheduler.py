"""The scheduler's rules, one by one."""

from __future__ import annotations

import pytest

from lsv.kv.spec import KVGroup
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import FinishReason, Request, Status
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import Kind
from lsv.scheduler.policy import Fcfs, Priority
from lsv_base.errors import BadRequest, Overloaded
from lsv_testing.fakes.requests import GivenGroup, make_request
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.tokens import expected_output


def limits(**changes) -> Limits:
    return Limits(**{"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128, **changes})


def assert_as_expected(rig: Rig, *requests: Request) -> None:
    for request in requests:
        assert rig.tokens(request.id) == request.output == expected_output(request, rig.scheduler.longest)


# The way of one request


def test_request_is_computed_token_by_token():
    rig = Rig()
    request = rig.ask(1, range(6), max_tokens=3)
    first = rig.plan()
    assert first.kind is Kind.PREFILL
    assert (first.rows.start, first.rows.count, first.rows.wants_logits) == ((0,), (6,), (True,))
    assert (first.begin[0].ids, first.begin[0].prompt) == (tuple(range(6)), 6)
    assert [len(grown.blocks) for grown in first.blocks] == [2]
    rig.settle()
    second = rig.plan()
    assert second.kind is Kind.DECODE
    assert (second.rows.start, second.rows.count, second.begin) == ((6,), (1,), ())
    rig.settle()
    rig.run()
    assert request.status is Status.FINISHED
    assert rig.news[1][-1].finish is FinishReason.LENGTH
    assert_as_expected(rig, request)
    assert rig.kv.usage == 0
    assert not rig.scheduler.has_work
    assert rig.plan() is None


def test_times_are_those_of_the_caller():
    rig = Rig()
    rig.clock.advance(5)
    request = rig.ask(1, range(40), max_tokens=2)
    rig.run()
    assert (request.arrival, request.first_planned, request.first_token) == (5, 5, 7)


@pytest.mark.row("F-326")
def test_new_requests_join_running_ones():
    rig = Rig()
    rig.ask(1, range(6))
    rig.step()
    rig.ask(2, range(50, 55))
    plan = rig.plan()
    assert plan.kind is Kind.MIXED
    assert plan.rows.count == (1, 5)


@pytest.mark.row("F-329", "F-330")
def test_decoding_goes_first_and_prompts_take_the_rest_in_chunks():
    rig = Rig(limits=limits(max_num_batched_tokens=10))
    requests = [rig.ask(1, range(6)), rig.ask(2, range(50, 75))]
    counts = []
    for _ in range(4):
        rig.step()
        counts.append(rig.plans[-1].rows.count)
    assert counts == [(6, 4), (1, 9), (1, 9), (1, 3)]
    rig.run()
    assert_as_expected(rig, *requests)


def test_whole_prompts_without_chunked_prefill():
    rig = Rig(limits=limits(max_num_batched_tokens=16, chunked_prefill=False))
    requests = [rig.ask(1, range(10)), rig.ask(2, range(50, 60))]
    rig.step()
    rig.step()
    assert [plan.rows.count for plan in rig.plans] == [(10,), (1, 10)]
    rig.run()
    assert_as_expected(rig, *requests)
    with pytest.raises(BadRequest, match="without chunked prefill"):
        rig.ask(3, range(17))


def test_prompts_first_where_steps_can_not_be_mixed():
    rig = Rig(limits=limits(mixed_batches=False, chunked_prefill=False))
    rig.ask(1, range(6), max_tokens=4)
    rig.step()
    rig.ask(2, range(50, 56), max_tokens=4)
    rig.run()
    kinds = [plan.kind for plan in rig.plans]
    assert kinds[:3] == [Kind.PREFILL, Kind.PREFILL, Kind.DECODE]
    assert Kind.MIXED not in kinds


def test_chunks_take_turns_with_decoding_where_steps_can_not_be_mixed():
    rig = Rig(limits=limits(mixed_batches=False, max_num_batched_tokens=8))
    requests = [rig.ask(1, range(6))]
    rig.step()
    requests.append(rig.ask(2, range(50, 74)))
    for _ in range(5):
        rig.step()
    assert [plan.kind for plan in rig.plans[1:]] == [
        Kind.DECODE, Kind.PREFILL, Kind.DECODE, Kind.PREFILL, Kind.DECODE,
    ]  # fmt: skip
    rig.run()
    assert_as_expected(rig, *requests)


# How an answer ends


def answer(rig: Rig, **changes) -> Request:
    prompt = tuple(range(5))
    params = {"temperature": 0.0, "max_tokens": 12, **changes}
    stop_ids = params.pop("stop_ids", ())
    request = rig.add(make_request(1, prompt, sampling=SamplingParams(**params), stop_ids=stop_ids))
    rig.run()
    return request


def test_eos_ends_without_a_stop():
    plain = answer(Rig()).output
    rig = Rig()
    request = answer(rig, stop_ids=(plain[4],))
    assert request.output == plain[: plain.index(plain[4]) + 1]
    assert rig.news[1][-1].finish is FinishReason.STOP
    assert rig.news[1][-1].stop is None


@pytest.mark.row("F-051")
def test_stop_id_of_the_user_is_named():
    plain = answer(Rig()).output
    rig = Rig()
    answer(rig, stop_ids=(plain[4],), stop_token_ids=(plain[4],))
    assert rig.news[1][-1].stop == plain[4]


@pytest.mark.row("F-055")
def test_stop_ids_count_from_min_tokens_on():
    plain = answer(Rig()).output
    request = answer(Rig(), stop_ids=(plain[1],), min_tokens=6)
    assert len(request.output) > 6
    assert plain[1] not in request.output[:6]


@pytest.mark.row("F-054")
def test_length_is_bounded_by_the_model():
    rig = Rig(limits=limits(max_model_len=16))
    request = answer(rig, max_tokens=None)
    assert len(request) == 16
    assert rig.news[1][-1].finish is FinishReason.LENGTH


def test_length_is_bounded_by_all_blocks():
    rig = Rig(num_blocks=3)
    request = answer(rig, max_tokens=None)
    assert len(request) == 12


def test_client_ends_an_answer_at_a_stop_string():
    rig = Rig()
    request = rig.ask(1, range(5), max_tokens=50)
    for _ in range(4):
        rig.step()
    outcome = rig.scheduler.finish(1, 2, FinishReason.STOP)
    assert (outcome.finish, outcome.tokens, len(request.output)) == (FinishReason.STOP, (), 2)
    assert rig.scheduler.finish(1, 2, FinishReason.STOP) is None
    rig.scheduler.check()
    assert rig.kv.usage == 0


def test_pooling_gives_one_vector_and_no_token():
    rig = Rig(limits=limits(max_num_batched_tokens=4))
    rig.add(make_request(1, tuple(range(10)), pooling=PoolingParams()))
    rig.run()
    (outcome,) = rig.news[1]
    assert (len(outcome.vector), outcome.tokens, outcome.finish) == (16, (), FinishReason.STOP)


def test_pooling_prompt_may_fill_the_model():
    rig = Rig(limits=limits(max_model_len=16))
    rig.add(make_request(1, tuple(range(16)), pooling=PoolingParams()))
    rig.run()
    assert rig.news[1][0].vector is not None


def test_models_without_a_cache_pool_too():
    rig = Rig(groups=(), num_blocks=0)
    rig.add(make_request(1, tuple(range(10)), pooling=PoolingParams()))
    rig.run()
    assert rig.news[1][0].vector is not None


# Who is refused


@pytest.mark.parametrize(
    ("prompt", "message"),
    [((), "empty"), (range(128), "at most 127 fit"), ((1, -1), "between 0"), ((1 << 31,), "between 0")],
)
def test_prompts_that_can_never_be_served(prompt, message):
    with pytest.raises(BadRequest, match=message):
        Rig().ask(1, prompt)


def test_prompt_that_all_blocks_can_not_hold():
    with pytest.raises(BadRequest, match="3 blocks of 4 tokens"):
        Rig(num_blocks=3).ask(1, range(12))


def test_full_queue():
    rig = Rig(limits=limits(max_queue=2))
    rig.ask(1, range(5))
    rig.ask(2, range(5))
    with pytest.raises(Overloaded, match="2 requests"):
        rig.ask(3, range(5))
    rig.step()
    rig.ask(3, range(5))


def test_deadline_aborts_wherever_the_request_is():
    rig = Rig(limits=limits(max_num_seqs=1))
    for id in (1, 2):
        sampling = SamplingParams(max_tokens=100)
        rig.add(make_request(id, tuple(range(id, 9)), sampling=sampling, timeout=3.0))
    rig.step()
    assert rig.scheduler.expire(2.9) == ()
    outcomes = rig.scheduler.expire(3.0)
    assert [(outcome.request.id, outcome.finish) for outcome in outcomes] == [
        (1, FinishReason.ABORT),
        (2, FinishReason.ABORT),
    ]
    assert rig.kv.usage == 0
    assert not rig.scheduler.has_work


def test_aborting_what_is_unknown_is_nothing():
    assert Rig().scheduler.abort([7]) == ()


# The waiting queue


def test_request_with_needs_blocks_nobody():
    rig = Rig()
    held = make_request(1, (1, 2), sampling=SamplingParams())
    group = GivenGroup(held)
    group.needs = {"grammar", "media"}
    rig.scheduler.add(group, 0.0)
    rig.ask(2, range(5), max_tokens=2)
    rig.step()
    rig.scheduler.satisfy(1, "grammar")
    rig.step()
    assert rig.scheduler.counts.waiting == 1
    assert rig.plan() is None
    rig.scheduler.satisfy(1, "media")
    rig.run()
    assert held.status is Status.FINISHED


def test_priority_goes_before_arrival():
    rig = Rig(policy=Priority(), limits=limits(max_num_seqs=1))
    for id, priority in ((1, 5), (2, 1), (3, 1)):
        rig.ask(id, range(id, id + 5), max_tokens=1, priority=priority)
    rig.run()
    assert [plan.begin[0].ids[0] for plan in rig.plans] == [2, 3, 1]


def test_first_come_first_served():
    rig = Rig(policy=Fcfs(), limits=limits(max_num_seqs=1))
    for id, priority in ((1, 5), (2, 1)):
        rig.ask(id, range(id, id + 5), max_tokens=1, priority=priority)
    rig.run()
    assert [plan.begin[0].ids[0] for plan in rig.plans] == [1, 2]


def test_slots_are_reused_after_their_end():
    rig = Rig(limits=limits(max_num_seqs=2))
    requests = [rig.ask(id, range(id, id + 5), max_tokens=3) for id in range(6)]
    rig.run()
    slots = [begin.slot for plan in rig.plans for begin in plan.begin]
    assert sorted(set(slots)) == [0, 1]
    assert len(slots) == 6
    assert_as_expected(rig, *requests)


# Blocks


def test_newcomer_leaves_blocks_for_the_running():
    # Two prompts of two blocks and one block for a step of the first are five.
    rig = Rig(num_blocks=4)
    rig.ask(1, range(8), max_tokens=2)
    rig.ask(2, range(50, 58), max_tokens=2)
    assert len(rig.plan().rows) == 1
    rig = Rig(num_blocks=5)
    rig.ask(1, range(8), max_tokens=2)
    rig.ask(2, range(50, 58), max_tokens=2)
    assert len(rig.plan().rows) == 2


@pytest.mark.row("F-258", "F-327", "F-332", "F-753", "F-995")
def test_last_in_line_is_preempted_and_comes_back_with_its_output():
    rig = Rig(num_blocks=8, prefix_caching=False)
    first, second = rig.ask(1, range(9), max_tokens=20), rig.ask(2, range(50, 59), max_tokens=20)
    rig.run()
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert rig.scheduler.counts.preemptions == 1
    back = [begin for plan in rig.plans for begin in plan.begin][2]
    assert back.prompt == 9
    assert back.ids == (*range(50, 59), *second.output[: len(back.ids) - 9])
    assert_as_expected(rig, first, second)


def test_lowest_priority_is_preempted():
    rig = Rig(num_blocks=8, policy=Priority(), prefix_caching=False)
    first, second = rig.ask(1, range(9), 20, priority=1), rig.ask(2, range(50, 59), 20, priority=0)
    rig.run()
    assert first.preemptions > 0
    assert second.preemptions == 0
    assert_as_expected(rig, first, second)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_preemptions_of_a_request_are_bounded(most):
    rig = Rig(num_blocks=12, prefix_caching=False, limits=limits(max_preemptions=most))
    requests = [rig.ask(id, range(10 * id, 10 * id + 9), max_tokens=3 + id % 3 * 10) for id in range(5, 20)]
    rig.run()
    assert max(request.preemptions for request in requests) <= most
    assert_as_expected(rig, *requests)


def test_protected_request_is_not_preempted_for_a_better_one():
    rig = Rig(num_blocks=10, policy=Priority(), limits=limits(max_preemptions=1), prefix_caching=False)
    protected = make_request(1, tuple(range(9)), sampling=SamplingParams(max_tokens=15), priority=1)
    protected.preemptions = 1
    rig.add(protected)
    rig.step()
    better = rig.ask(2, range(50, 58), max_tokens=12, priority=0)
    rig.run()
    assert (protected.preemptions, better.preemptions) == (1, 1)
    assert_as_expected(rig, protected, better)


def test_window_keeps_long_answers_within_few_blocks():
    window = (KVGroup(0, "window", (0,), 1, window=6),)
    rig = Rig(groups=window, num_blocks=5, limits=limits(max_num_batched_tokens=8))
    request = rig.ask(1, range(5), max_tokens=100)
    rig.run()
    assert len(request.output) == 100
    assert request.preemptions == 0
    assert_as_expected(rig, request)


# The prefix cache


@pytest.mark.row("F-355")
def test_second_turn_computes_only_what_is_new():
    rig = Rig()
    first = rig.ask(1, range(10), max_tokens=6)
    rig.run()
    second = rig.ask(2, (*range(10), *first.output, 7, 7), max_tokens=6)
    rig.run()
    assert second.cached == 12
    assert rig.scheduler.counts.prefix_hits == 12
    assert rig.scheduler.counts.prefix_queries == 28
    assert_as_expected(rig, first, second)


def test_equal_prompts_together_are_computed_once():
    rig = Rig(limits=limits(max_num_seqs=16))
    requests = [rig.ask(id, range(21), max_tokens=2) for id in range(16)]
    rig.run()
    prompt_tokens = sum(plan.tokens for plan in rig.plans) - 16  # each also decodes one token
    assert prompt_tokens == 21 + 15 * 1
    assert_as_expected(rig, *requests)


def test_waiting_for_blocks_of_another_holds_up_nobody():
    rig = Rig()
    requests = [rig.ask(id, prompt) for id, prompt in ((1, range(20)), (2, range(20)), (3, range(50, 54)))]
    assert rig.plan().rows.count == (20, 4)
    assert requests[1].status is Status.WAITING
    rig.run()
    assert requests[1].cached == 16
    assert_as_expected(rig, *requests)


def test_waiter_goes_on_when_the_one_that_computes_is_aborted():
    rig = Rig(limits=limits(max_num_batched_tokens=8))
    rig.ask(1, range(20), max_tokens=2)
    waiter = rig.ask(2, range(20), max_tokens=2)
    rig.step()
    rig.note(rig.scheduler.abort([1]))
    rig.run()
    assert waiter.cached == 8
    assert_as_expected(rig, waiter)


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_take_no_hit_and_come_once_despite_preemption(caching):
    rig = Rig(num_blocks=8, prefix_caching=caching)
    first = rig.ask(1, range(9), max_tokens=20)
    params = SamplingParams(temperature=0.0, max_tokens=20, prompt_logprobs=0, logprobs=1)
    second = rig.add(make_request(2, tuple(range(9)), sampling=params))
    rig.run()
    assert second.cached == 0
    assert second.preemptions > 0
    scored = [ids for news in rig.news[2] if news.prompt_logprobs for ids in news.prompt_logprobs.ids]
    assert scored == [(token,) for token in range(1, 9)]
    chosen = [ids[0] for news in rig.news[2] for ids in news.logprobs.ids]
    assert chosen == second.output
    assert_as_expected(rig, first, second)


def test_resetting_the_prefix_cache():
    rig = Rig()
    rig.ask(1, range(20), max_tokens=2)
    rig.run()
    rig.scheduler.reset_prefix_cache()
    again = rig.ask(2, range(20), max_tokens=2)
    rig.run()
    assert again.cached == 0


def test_death_of_the_workers_ends_everything():
    rig = Rig(limits=limits(max_num_seqs=1))
    rig.ask(1, range(20))
    rig.ask(2, range(20))
    rig.plan()
    outcomes = rig.scheduler.fail_all("gone")
    rig.scheduler.check()
    assert [(news.finish, news.error) for news in outcomes] == [(FinishReason.ERROR, "gone")] * 2
    assert (rig.scheduler.has_work, rig.scheduler.in_flight, rig.kv.usage) == (False, 0, 0)
    rig.worker = Rig().worker
    rig.add(make_request(3, tuple(range(20)), sampling=SamplingParams()))
    assert rig.scheduler.plan(0.0).rows.start == (0,)
