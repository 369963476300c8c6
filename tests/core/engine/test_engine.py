"""The engine over a fake worker: owners, timing, failures. No process, no clock but the test's."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from lsv.engine.engine import Engine
from lsv.engine.messages import Finish, Start, Submit, Update
from lsv.engine.open_requests import make_group, make_refusal, make_update
from lsv.engine.parts.part import overriding
from lsv.engine.parts.transfers import TransfersPart
from lsv.grammars.guide import Guide
from lsv.request.params import NO_TOKEN_LEFT, SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import StepResult
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, EngineDied, LsvError, Overloaded, RequestFailed, from_record
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.requests import make_request, make_spec


def make(**changes: object) -> Engine[str]:
    engine: Engine[str] = Engine(engine_config(**changes), FakeExecutor(), Fcfs(), parts=core_parts, now=FakeClock())
    engine.start(lambda stage, done, total: None)
    return engine


def ask(id: int, prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> Submit:
    params = {"temperature": 0.0, "max_tokens": 5, **params}
    return Submit(id=id, spec=make_spec(prompt, SamplingParams(**params), request_id=f"r{id}"))


def run(engine: Engine[str], most: int = 1000) -> dict[str, list[Update]]:
    news: dict[str, list[Update]] = {}
    for _ in range(most):
        if not engine.has_work:
            return news
        for owner, updates in engine.step().items():
            news.setdefault(owner, []).extend(updates)
    raise AssertionError("not finished")


def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=count)
    return fake_tokens.expected_output(make_request(0, prompt, sampling=params), 10_000)


def tokens(updates: list[Update], id: int) -> list[int]:
    return [token for update in updates if update.id == id for token in update.tokens]


def test_owners_get_their_own_news():
    engine = make()
    engine.submit("a", ask(0))
    engine.submit("b", ask(0, (7, 8)))
    news = run(engine)
    assert tokens(news["a"], 0) == expected((1, 2, 3), 5)
    assert tokens(news["b"], 0) == expected((7, 8), 5)
    assert [update.finish for update in news["a"]] == [None] * 4 + [FinishReason.LENGTH]


@pytest.mark.row("F-338", "F-339")
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_plans_in_flight_change_no_token(depth: int):
    executor = FakeExecutor()
    executor.depth = depth
    engine: Engine[str] = Engine(engine_config(num_blocks=40), executor, Fcfs(), parts=core_parts, now=FakeClock())
    engine.start(lambda *_: None)
    for id in range(6):
        engine.submit("a", ask(id, (id + 1,) * (id + 1), max_tokens=10 + id))
    news = engine.step()["a"]
    engine.abort("a", [5])
    news += run(engine)["a"]
    for id in range(5):
        assert tokens(news, id) == expected((id + 1,) * (id + 1), 10 + id)


def test_timing_comes_with_the_first_tokens_only():
    engine = make()
    engine.submit("a", ask(0))
    updates = run(engine)["a"]
    assert updates[0].start == Start()
    assert all(update.start is None for update in updates[1:])


def test_totals():
    engine = make()
    for id in range(3):
        engine.submit("a", ask(id, (id + 1, 2, 3)))
    run(engine)
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.generation_tokens_total == 15
    assert stats.prompt_tokens_total == 9
    assert stats.steps_total == 5


def test_an_aborted_request_is_silent_and_free_at_once():
    engine = make()
    engine.submit("a", ask(0, max_tokens=100))
    engine.submit("a", ask(1))
    engine.step()
    engine.abort("a", [0, 99])
    assert engine.stats.running == 1
    assert {update.id for update in run(engine)["a"]} == {1}
    assert engine.stats.kv_usage == 0.0


def test_an_owner_who_leaves_takes_his_requests_along():
    engine = make()
    engine.submit("a", ask(0, max_tokens=100))
    engine.submit("b", ask(0))
    engine.step()
    engine.abort_all("a")
    assert set(run(engine)) == {"b"}


def test_finish_ends_an_answer_before_its_time():
    engine = make()
    engine.submit("a", ask(0, max_tokens=100))
    engine.step()
    engine.finish("a", Finish(0, 0, 1))
    engine.finish("a", Finish(0, 0, 1))
    assert not engine.has_work
    engine.submit("a", ask(0))
    assert len(tokens(run(engine)["a"], 0)) == 5


@pytest.mark.row("F-010", "F-046")
def test_requests_without_a_seed_get_different_ones_that_repeat_from_run_to_run():
    seeds = []
    for _ in range(2):
        engine = make(seed=3)
        for id in range(3):
            engine.submit("a", ask(id))
        seeds.append([make_group(number, ask(number), engine.config, 0.0).make(0).seed for number in range(3)])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3
    assert make_group(0, ask(0), make(seed=4).config, 0.0).make(0).seed != seeds[0][0]
    assert make_group(5, ask(0, seed=17), engine.config, 0.0).make(0).seed == 17


def test_deadline():
    clock = FakeClock()
    engine: Engine[str] = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts, now=clock)
    engine.start(lambda *_: None)
    engine.submit("a", Submit(id=0, spec=make_spec((1,), SamplingParams(max_tokens=100), timeout=5.0)))
    engine.step()
    clock.advance(6.0)
    assert engine.step()["a"][-1].finish is FinishReason.ABORT
    assert not engine.has_work


def test_refusals():
    engine = make(max_queue=1)
    with pytest.raises(BadRequest):
        engine.submit("a", ask(0, tuple(range(1, 90)) * 4))
    engine.submit("a", ask(1))
    with pytest.raises(Overloaded) as full:
        engine.submit("a", ask(2))
    assert make_refusal(2, full.value).error.code == "overloaded"
    assert tokens(run(engine)["a"], 1) == expected((1, 2, 3), 5)


def test_nothing_is_begun_for_who_is_refused(monkeypatch):
    """Neither an adapter is read, nor a grammar compiled, nor another engine asked."""
    engine, begun = make(max_queue=1), []
    opening = overriding(engine.parts.all, "open")
    for part in opening:
        monkeypatch.setattr(part, "open", lambda group: begun.append(group.id))
    engine.submit("a", ask(1))
    assert len(begun) == len(opening)
    with pytest.raises(Overloaded):
        engine.submit("a", ask(2))
    with pytest.raises(BadRequest):
        engine.submit("a", ask(3, tuple(range(1, 90)) * 4))
    assert len(begun) == len(opening)


def test_nothing_is_kept_of_who_is_refused_late(monkeypatch):
    engine, closed = make(), []
    refusal = BadRequest("no")

    def refuse(group):
        raise refusal

    monkeypatch.setattr(part_of(engine, TransfersPart), "open", refuse)
    monkeypatch.setattr(part_of(engine, Guide), "close", closed.append)
    with pytest.raises(BadRequest):
        engine.submit("a", ask(1))
    assert len(closed) == 1


def test_a_failed_row_fails_its_request_alone():
    engine = make(options={"fake.fail": 1})
    engine.submit("a", ask(0))
    engine.submit("a", ask(1, (4, 5)))
    updates = run(engine)["a"]
    ends = {update.id: update for update in updates if update.finish is not None}
    assert ends[0].finish is FinishReason.ERROR
    assert ends[0].error.code == "request_failed"
    assert ends[1].finish is FinishReason.LENGTH


@pytest.mark.parametrize(("why", "kind"), [(NO_TOKEN_LEFT, BadRequest), ("non-finite logits", RequestFailed)])
def test_whose_fault_a_failed_row_is(why: str, kind: type[LsvError]):
    outcome = Outcome(make_request(0, (1,), sampling=SamplingParams()), finish=FinishReason.ERROR, error=why)
    update = make_update(0, outcome)
    assert type(from_record(update.error)) is kind


def test_a_dead_worker_is_the_end():
    engine = make(options={"fake.die": 2})
    engine.submit("a", ask(0))
    with pytest.raises(EngineDied, match="step 2"):
        run(engine)
    assert not engine.has_work
    with pytest.raises(EngineDied):
        engine.submit("a", ask(1))


@pytest.mark.row("F-333", "F-334", "F-335", "F-995")
def test_preemption_is_told_once_in_known_words(caplog):
    engine = make(num_blocks=12, prefix_caching=False)
    for id in range(4):
        engine.submit("a", ask(id, (id + 1, 2, 3), max_tokens=16))
    news = run(engine)["a"]
    for id in range(4):
        assert tokens(news, id) == expected((id + 1, 2, 3), 16)
    assert engine.stats.preemptions_total > 0
    lines = [record.message for record in caplog.records if "PreemptionMode.RECOMPUTE" in record.message]
    assert len(lines) == 1
    assert lines[0].startswith("Request r3 is preempted by PreemptionMode.RECOMPUTE mode because")
    assert "total_cumulative_preemption_cnt=1" in lines[0]


def test_limit_between_tokens_that_can_not_be_kept_is_told_once(caplog):
    class Slow(FakeExecutor):
        def collect(self, timeout: float) -> StepResult:
            return msgspec.structs.replace(super().collect(timeout), seconds=0.03)

    for limit, lines in ((20.0, 1), (40.0, 0), (None, 0)):
        caplog.clear()
        engine: Engine[str] = Engine(engine_config(max_itl_ms=limit), Slow(), Fcfs(), parts=core_parts, now=FakeClock())
        engine.start(lambda *_: None)
        engine.submit("a", ask(0, max_tokens=100))
        run(engine)
        told = [record.message for record in caplog.records if "max_itl_ms=20 can't be kept" in record.message]
        assert len(told) == lines
        assert all("takes 30.0 ms" in message for message in told)


def test_the_engine_and_its_clients_load_no_torch():
    modules = "lsv.engine.main, lsv.engine.socket_client, lsv.engine.supervision.supervisor"
    code = f"import {modules}, lsv_offline.llm, lsv.text.tokenizer, sys\n"
    code += "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
