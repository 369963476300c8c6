"""Beam searches over a fake worker: what the engine does with rounds, whatever becomes of the request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from lsv.beams.rounds import BeamSearches
from lsv.beams.search import Beam, BeamSearch, likeliest_of
from lsv.engine.engine import Engine
from lsv.engine.messages import Start, Submit, Update
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, EngineDied
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.requests import make_spec

pytestmark = [pytest.mark.row("F-047"), pytest.mark.row("F-347")]

PROMPT = (5, 6, 7, 8, 9, 10)


def make(depth: int = 1, clock: FakeClock | None = None, **changes: object) -> Engine[str]:
    executor = FakeExecutor()
    executor.depth = depth
    engine: Engine[str] = Engine(engine_config(**changes), executor, Fcfs(), parts=core_parts, now=clock or FakeClock())
    engine.start(lambda *_: None)
    return engine


def ask(
    id: int, *prompts: Sequence[int], stop_ids: tuple[int, ...] = (), timeout: float | None = None, **params: object
):
    params = {"use_beam_search": True, "n": 3, "best_of": 4, "max_tokens": 9, "logprobs": 0, **params}
    spec = make_spec((), SamplingParams(**params), request_id=f"r{id}", timeout=timeout)
    given = tuple(Prompt(ids=tuple(prompt)) for prompt in prompts or (PROMPT,))
    return Submit(id=id, spec=msgspec.structs.replace(spec, prompts=given), stop_ids=stop_ids)


def plain(id: int, prompt: Sequence[int] = PROMPT, count: int = 12) -> Submit:
    return Submit(id=id, spec=make_spec(prompt, SamplingParams(temperature=0.0, max_tokens=count), request_id=f"p{id}"))


def run(engine: Engine[str], most: int = 1000) -> list[Update]:
    """Its updates, but for those that only count what a round took."""
    news: list[Update] = []
    for _ in range(most):
        if not engine.has_work:
            break
        news += [update for update in engine.step().get("a", []) if update.tokens or update.finish]
        engine.scheduler.check()
    assert not engine.has_work, "not finished"
    assert_idle(engine)
    return news


def assert_idle(engine: Engine[str]) -> None:
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert not engine.unfinished
    assert not part_of(engine, BeamSearches)._groups


def expected(prompt: Sequence[int], submit: Submit) -> list[Beam]:
    """The search by itself, over the fake model."""
    params = submit.spec.sampling
    assert params is not None
    search = BeamSearch(params, submit.stop_ids, params.max_tokens or 0)
    likeliest = likeliest_of(params, submit.stop_ids)
    while not search.done:
        states = [fake_tokens.states((*prompt, *beam.tokens))[-1] for beam in search.beams]
        search.advance([fake_tokens.logprobs((fake_tokens.next_token(state),), likeliest) for state in states])
    return search.answers[: params.n]


def check(news: list[Update], submit: Submit) -> None:
    mine = sorted((update for update in news if update.id == submit.id), key=lambda update: update.index)
    prompts = [prompt.ids for prompt in submit.spec.prompts]
    beams = [beam for prompt in prompts for beam in expected(prompt, submit)]
    assert [update.tokens for update in mine] == [beam.tokens for beam in beams]
    assert [update.finish for update in mine] == [beam.finish for beam in beams]
    for update, beam in zip(mine, beams, strict=True):
        assert update.logprobs is not None
        assert sum(values[0] for values in update.logprobs.values) == pytest.approx(beam.logprob)
        assert [ids[0] for ids in update.logprobs.ids] == list(beam.tokens)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefix_caching": False},
        {"max_num_batched_tokens": 3},
        {"max_num_seqs": 2},
        {"num_blocks": 10},
        {"mixed_batches": False},
        {"max_itl_ms": 5.0},
    ],
)
def test_answers_are_those_of_the_search_alone(depth: int, options: dict[str, object]) -> None:
    engine = make(depth, **options)
    asked = [ask(0), ask(1, (1,), (2, 3, 4, 5)), ask(2, stop_ids=(3, 50, 51), max_tokens=14, early_stopping=True)]
    others = [plain(id, (id,) * id) for id in range(3, 6)]
    for submit in (*asked, *others):
        engine.submit("a", submit)
    news = run(engine)
    for submit in asked:
        check(news, submit)
    for submit in others:
        tokens = [token for update in news if update.id == submit.id for token in update.tokens]
        alone = make()
        alone.submit("a", submit)
        assert tokens == [token for update in run(alone) for token in update.tokens]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("steps", range(9))
def test_an_aborted_search_leaves_nothing(depth: int, steps: int) -> None:
    engine = make(depth, max_num_batched_tokens=8)
    engine.submit("a", ask(0))
    engine.submit("a", plain(1))
    for _ in range(steps):
        engine.step()
    engine.abort("a", [0])
    assert {update.id for update in run(engine)} <= {1}
    engine.submit("a", ask(0))
    check(run(engine), ask(0))


@pytest.mark.parametrize("step", range(6))
def test_a_row_that_fails_ends_the_search(step: int) -> None:
    engine = make(2, options={"fake.fail": step})
    engine.submit("a", ask(0, (1, 2), (3, 4)))
    failed = run(engine)
    assert {update.finish for update in failed} == {FinishReason.ERROR}
    assert sorted(update.index for update in failed) == list(range(6))
    assert all(update.error is not None and "non-finite" in update.error.message for update in failed)


def test_a_deadline_ends_every_answer() -> None:
    clock = FakeClock()
    engine = make(clock=clock)
    engine.submit("a", ask(0, timeout=5.0))
    for _ in range(3):
        assert not any(update.finish for update in engine.step()["a"])
    clock.advance(6.0)
    news = run(engine)
    assert [(update.index, update.finish) for update in news] == [(index, FinishReason.ABORT) for index in range(3)]


def test_dead_workers_end_it() -> None:
    engine = make(options={"fake.die": 4})
    engine.submit("a", ask(0))
    with pytest.raises(EngineDied):
        run(engine)
    assert not part_of(engine, BeamSearches)._groups


def test_a_search_keeps_its_place() -> None:
    """Requests that came later and wait for slots do not come before the next round."""
    engine = make(max_num_seqs=4)
    engine.submit("a", ask(0))
    for id in range(1, 41):
        engine.submit("a", plain(id, count=3))
    ended = [update.id for update in run(engine) if update.finish is not None]
    assert len(ended) - ended.index(0) > 20


def test_counts_are_those_of_one_request() -> None:
    engine = make()
    engine.submit("a", ask(0, prompt_logprobs=0))
    news = run(engine)
    assert engine.stats.prompt_tokens_total == len(PROMPT)
    assert engine.stats.prefix_queries_total == len(PROMPT)
    first, *others = sorted(news, key=lambda update: update.index)
    assert first.start == Start()
    assert first.prompt_logprobs is not None
    assert [ids[0] for ids in first.prompt_logprobs.ids] == list(PROMPT[1:])
    assert all(update.prompt_logprobs is None for update in others)


def test_a_stop_token_is_told() -> None:
    stop = expected(PROMPT, ask(0))[0].tokens[2]
    engine = make()
    engine.submit("a", ask(0, stop_token_ids=(stop,), stop_ids=(stop,)))
    stopped = [update for update in run(engine) if update.finish is FinishReason.STOP]
    assert stopped
    assert all(update.stop == stop == update.tokens[-1] for update in stopped)


def test_engines_that_would_serve_nobody_else_refuse() -> None:
    engine = make(mixed_batches=False, chunked_prefill=False)
    with pytest.raises(BadRequest, match="chunked prefill"):
        engine.submit("a", ask(0))
    assert_idle(engine)


def test_a_prompt_that_can_not_fit_leaves_nothing() -> None:
    engine = make()
    with pytest.raises(BadRequest):
        engine.submit("a", ask(0, (1,) * 300))
    assert_idle(engine)
