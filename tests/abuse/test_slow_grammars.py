"""An answer with a slow grammar delays only itself."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lsv import LLM, SamplingParams
from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.grammars import compiler, followed, guide, masks
from lsv.grammars.guide import Guide
from lsv.request.params import SamplingParams as Params
from lsv.request.request import FinishReason
from lsv.request.structured import StructuredOutputsParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, from_record
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, engine_config, part_of
from lsv_testing.fakes.grammar import EOS, CountUp, FakeCompiler
from lsv_testing.fakes.requests import make_spec

AMBIGUOUS = 'start: e\ne: e e | e e e | e e e e | "a" | "b" | "ab" | "ba"'
"""An ambiguous grammar. Each token takes longer than the previous one, because all derivations are followed."""
pytestmark = pytest.mark.timeout(100)


def burn(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


class Slow(CountUp):
    """Takes ``seconds`` of processor time for each token, and records its threads."""

    seconds = 2 * followed.QUICK
    threads: set[str] = set()
    gate: threading.Event | None = None
    """An event that the second and later tokens wait for."""

    def accept(self, ids: Sequence[int]) -> bool:
        if self.gate is not None and self.seen:
            self.threads.add(threading.current_thread().name)
            self.gate.wait(60)
        burn(self.seconds)
        return super().accept(ids)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine[str]]:
    def make(depth: int = 1, seconds: float = 2 * followed.QUICK, **changes: object) -> Engine[str]:
        monkeypatch.setattr(Slow, "seconds", seconds)
        found, executor = FakeCompiler(), FakeExecutor()
        found.found = {"slow": Slow(40), "quick": CountUp(40)}
        executor.depth = depth
        engine: Engine[str] = Engine(
            engine_config(**changes), executor, Fcfs(),
            parts=lambda host: [Guide(found, host)],  # type: ignore[arg-type]
            now=FakeClock(),
        )  # fmt: skip
        engine.start(lambda *_: None)
        return engine

    return make


def ask(id: int, form: str | None = "slow", prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> Submit:
    given = {"structured_outputs": form and StructuredOutputsParams(regex=form), "max_tokens": 90, **params}
    return Submit(id=id, spec=make_spec(prompt, Params(**given), request_id=f"r{id}"), stop_ids=(EOS,))  # type: ignore[arg-type]


def run(engine: Engine[str]) -> list[Update]:
    news: list[Update] = []
    began = time.monotonic()
    while engine.has_work:
        assert time.monotonic() - began < 60, "not finished"
        news += engine.step().get("a", [])
    return news


def tokens(news: Sequence[Update], id: int) -> list[int]:
    return [token for update in news if update.id == id for token in update.tokens]


def test_other_answers_go_on_while_a_grammar_is_slow(
    make: Callable[..., Engine[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = make(), threading.Event()
    monkeypatch.setattr(Slow, "gate", gate)
    monkeypatch.setattr(Slow, "threads", set())
    engine.submit("a", ask(0))
    for _ in range(3):
        engine.step()
    engine.submit("a", ask(1, None, max_tokens=20))
    engine.submit("a", ask(2, "quick"))
    began, news = time.monotonic(), list[Update]()
    while len(tokens(news, 1)) < 20 or tokens(news, 2)[-1:] != [40]:
        assert time.monotonic() - began < 30
        news += engine.step().get("a", [])
    assert tokens(news, 0) == []
    gate.set()
    assert tokens(run(engine), 0)[-1] == 40
    assert Slow.threads == {"slow-masks"}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_slow_answers_follow_their_grammars(make: Callable[..., Engine[str]], depth: int) -> None:
    """The answers are the same as with quick grammars."""
    answers = []
    for form in ("quick", "slow"):
        engine = make(depth)
        for id in range(6):
            engine.submit("a", ask(id, form, (id + 1,) * (id + 1), temperature=1.0))
        news = run(engine)
        answers.append([tokens(news, id) for id in range(6)])
        assert all(
            update.finish is FinishReason.STOP and update.complete for update in news if update.finish is not None
        )
    assert answers[0] == answers[1]


def test_preempted_slow_answers_go_on_where_they_were(make: Callable[..., Engine[str]]) -> None:
    engine = make(2, num_blocks=24)
    for id in range(6):
        engine.submit("a", ask(id, prompt=(id + 1,) * 8))
    news = run(engine)
    assert engine.stats.preemptions_total
    assert [tokens(news, id)[-1] for id in range(6)] == [40] * 6


def test_answers_that_share_a_steps_allowance_take_turns(
    make: Callable[..., Engine[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many quick answers are slow together, so a step waits only for some of them."""
    engine = make(seconds=followed.QUICK / 2)
    monkeypatch.setattr(guide, "ALLOWANCE", 2 * followed.QUICK)
    lane: list[int] = []
    follow = part_of(engine, Guide)._lane.follow  # type: ignore[union-attr]
    monkeypatch.setattr(part_of(engine, Guide)._lane, "follow", lambda *given: (lane.append(1), follow(*given))[1])  # type: ignore[union-attr]
    for id in range(8):
        engine.submit("a", ask(id, prompt=(id + 1,)))
    news = run(engine)
    assert lane
    assert [tokens(news, id)[-1] for id in range(8)] == [40] * 8


def test_an_answer_over_its_time_budget_is_refused_by_name(
    make: Callable[..., Engine[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "SECONDS", 0.02)
    engine = make(seconds=0.01)
    engine.submit("a", ask(0))
    engine.submit("a", ask(1, "quick"))
    news = run(engine)
    (last,) = [update for update in news if update.id == 0 and update.finish is not None]
    assert last.error is not None
    error = from_record(last.error)
    assert isinstance(error, BadRequest)
    assert (error.status, error.param) == (400, "structured_outputs")
    assert "make the grammar less ambiguous" in error.message
    assert tokens(news, 1)[-1] == 40


def test_an_aborted_slow_answer_is_forgotten(make: Callable[..., Engine[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = make(), threading.Event()
    monkeypatch.setattr(Slow, "gate", gate)
    for id in range(2):
        engine.submit("a", ask(id))
    for _ in range(10):
        engine.step()
    engine.abort("a", [0, 1])
    assert not engine.has_work
    gate.set()
    engine.submit("a", ask(3, "quick"))
    assert tokens(run(engine), 3)[-1] == 40


def test_the_first_mask_is_computed_with_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step waits for the first mask, which is slow because later masks reuse its work."""
    threads: list[str] = []
    first = compiler._first_mask

    def note(*given: object) -> masks.Mask:
        threads.append(threading.current_thread().name)
        return first(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "_first_mask", note)
    filled: list[np.ndarray] = []
    fill = followed.Followed.fill
    monkeypatch.setattr(followed.Followed, "fill", lambda *given: (filled.append(given[1]), fill(*given))[1])
    with LLM("lsv-demo") as llm:
        params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputsParams(regex="[xyz]{3}"))
        (answer,) = llm.generate(["a"], params, use_tqdm=False)
    assert answer.outputs[0].text in ("x", "y", "z", "xy", "yz", "xyz", "zx")
    assert len(threads) == 1
    assert threads[0].startswith("grammars")
    assert not filled


def test_an_ambiguous_grammar_ends_only_its_own_answers() -> None:
    with LLM("lsv-demo") as llm:
        form = StructuredOutputsParams(grammar=AMBIGUOUS)
        params = [
            SamplingParams(max_tokens=400, temperature=1.0, ignore_eos=True, structured_outputs=form, seed=1),
            SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True),
        ]
        slow, other = llm.generate(["a", "Once"], params, use_tqdm=False)
    assert slow.error is not None
    assert slow.error.code == "invalid_request"
    assert "make the grammar less ambiguous" in slow.error.message
    assert len(other.outputs[0].token_ids) == 400
