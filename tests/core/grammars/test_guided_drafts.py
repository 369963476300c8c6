"""Drafts of answers that follow a grammar, over a fake worker: no token changes, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lsv.config import Drafts
from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.grammars import followed
from lsv.grammars.guide import Guide
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason, Request
from lsv.request.structured import StructuredOutputsParams
from lsv.scheduler.plan import StepPlan
from lsv.scheduler.plan_builder import GuidedRow
from lsv.scheduler.policy import Fcfs
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, engine_config
from lsv_testing.fakes.grammar import EOS, Counting, CountUp, FakeCompiler
from lsv_testing.fakes.requests import GivenGroup, make_request, make_spec
from lsv_testing.fakes.slot import FakeSlot
from lsv_testing.fakes.tokens import VOCABULARY
from lsv_testing.fakes.worker import Draft

FORMS: dict[str, Counting] = {
    "x": CountUp(90),
    "y": CountUp(30, ends=range(8, 30)),
    "z": CountUp(60, stuck=25),
    "w": CountUp(4),
}
STEPS: list[StepPlan] = []


class Watched(FakeExecutor):
    """Keeps the plans."""

    def submit(self, plan: StepPlan, *masks: Any) -> None:
        STEPS.append(plan)
        super().submit(plan, *masks)


def make(draft: Callable[[FakeCompiler], Draft] | None, depth: int = 1, most: int = 4, **changes: Any) -> Engine[str]:
    compiler, executor = FakeCompiler(), Watched()
    compiler.found = {**FORMS}
    executor.depth = depth
    if draft is not None:
        executor.draft = draft(compiler)
        changes["drafts"] = Drafts(drafter="fake", most=most, adaptive=False)
    engine: Engine[str] = Engine(
        engine_config(**changes), executor, Fcfs(),
        parts=lambda host: [Guide(compiler, host)],  # type: ignore[arg-type]
        now=FakeClock(),
    )  # fmt: skip
    engine.start(lambda stage, done, total: None)
    STEPS.clear()
    return engine


def ask(id: int, form: str | None, **params: Any) -> Submit:
    asked = None if form is None else StructuredOutputsParams(regex=form)
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 60, "structured_outputs": asked, **params})
    return Submit(id=id, spec=make_spec((id + 1,) * (id % 5 + 1), sampling, request_id=f"r{id}"), stop_ids=(EOS,))


def answers(engine: Engine[str], *asked: Submit) -> list[tuple[Any, ...]]:
    """What is said to each, and how it ended."""
    for one in asked:
        engine.submit("a", one)
    news: list[Update] = []
    while engine.has_work:
        news += engine.step().get("a", [])
    found = []
    for one in asked:
        mine = [update for update in news if update.id == one.id]
        tokens, last = tuple(token for update in mine for token in update.tokens), mine[-1]
        found.append((tokens, last.finish, last.complete, last.error and last.error.message))
    return found


def everything() -> list[Submit]:
    forms = (None, "x", "y", "z", "w")
    return [ask(id, forms[id % 5], ignore_eos=id >= 10, min_tokens=12 * (id % 7 == 2)) for id in range(15)]


def right(compiler: FakeCompiler) -> Draft:
    return compiler.draft


def forbidden(compiler: FakeCompiler) -> Draft:
    """Numbers that do not grow."""
    return lambda slot, most: [0] * most


def unlucky(compiler: FakeCompiler) -> Draft:
    """Tokens that may follow, and do not."""

    def draft(slot: FakeSlot, most: int) -> Sequence[int]:
        return [token + 1 for token in compiler.draft(slot, most)]

    return draft


def beyond(compiler: FakeCompiler) -> Draft:
    """What is right, and where that ends the answer something behind it."""
    return lambda slot, most: [*compiler.draft(slot, most), EOS, 3, 4, 5][:most]


def mixed(compiler: FakeCompiler) -> Draft:
    """Right up to anywhere, then anything."""

    def draft(slot: FakeSlot, most: int) -> Sequence[int]:
        rng = random.Random(slot.states[-1])
        good = rng.randint(0, most)
        return [*compiler.draft(slot, good), *(rng.randrange(VOCABULARY) for _ in range(most))][:most]

    return draft


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("draft", [right, forbidden, unlucky, beyond, mixed])
def test_drafts_change_no_answer(draft: Callable[[FakeCompiler], Draft], depth: int):
    plain = answers(make(None), *everything())
    assert {finish for _, finish, *_ in plain} == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}
    assert answers(make(draft, depth), *everything()) == plain


@pytest.mark.parametrize("quick", [-1.0, 20e-6], ids=["all slow", "some slow"])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("draft", [right, mixed])
def test_neither_drafts_nor_slow_grammars_change_an_answer(
    draft: Callable[[FakeCompiler], Draft], depth: int, quick: float, monkeypatch: pytest.MonkeyPatch
):
    plain = answers(make(None), *everything())
    monkeypatch.setattr(followed, "QUICK", quick)
    assert answers(make(draft, depth), *everything()) == plain


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("most", [1, 3, 4])
def test_right_drafts_are_tokens_of_the_same_step(most: int, depth: int, monkeypatch: pytest.MonkeyPatch):
    """Rows wait for their last token, however far others are planned ahead."""
    monkeypatch.setattr(followed, "QUICK", 60.0)  # grammars are quick on slow machines, too
    engine = make(right, depth, most)
    ((tokens, *_),) = answers(engine, ask(1, "x"))
    assert len(STEPS) == 1 + -(-(len(tokens) - 1) // (most + 1))
    counts = engine.stats.speculation
    assert counts is not None
    assert counts.accepted == counts.drafts == len(tokens) - len(STEPS)


def test_what_a_grammar_forbids_is_not_verified():
    engine = make(forbidden)
    answers(engine, ask(1, "x"))
    assert sum(sum(plan.rows.drafts) for plan in STEPS) == 0
    assert any(plan.rows.propose for plan in STEPS)


def test_what_ends_an_answer_is_not_verified():
    """It is sampled in its place, and nothing behind it is."""
    engine = make(beyond)
    ((tokens, finish, complete, _),) = answers(engine, ask(0, "w"))
    assert (finish, complete, tokens[-1]) == (FinishReason.STOP, True, 4)
    counts = engine.stats.speculation
    assert counts is not None
    assert counts.drafts == counts.accepted == len(tokens) - len(STEPS)


def test_preempted_answers_are_drafted_on():
    asked = [ask(id, ("x", "y")[id % 2], max_tokens=40) for id in range(8)]
    plain = answers(make(None), *asked)
    engine = make(mixed, 2, num_blocks=30)
    assert answers(engine, *asked) == plain
    assert engine.stats.preemptions_total
    assert engine.stats.speculation is not None
    assert engine.stats.speculation.accepted


def test_a_matcher_that_cannot_go_ahead_gets_no_drafts(monkeypatch: pytest.MonkeyPatch):
    """Nor is anything made for it once that is known; others are drafted as ever."""
    monkeypatch.setitem(FORMS, "x", Counting(90))
    asked = [ask(0, "x"), ask(1, "x")]
    plain = answers(make(None), *asked)
    assert answers(make(right, 2), *asked) == plain
    assert sum(sum(plan.rows.drafts) for plan in STEPS) == 0
    assert sum(sum(map(bool, plan.rows.propose)) for plan in STEPS) == len(asked)
    engine = make(right, 2)
    answers(engine, *asked, ask(2, "y"))
    assert engine.stats.speculation is not None
    assert engine.stats.speculation.accepted


def allowed(words: Any) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def guided(drafts: tuple[int, ...], form: Counting) -> tuple[Guide, Request, GuidedRow]:
    compiler = FakeCompiler()
    compiler.vocab_size, compiler.found = VOCABULARY, {"x": form}
    asked = StructuredOutputsParams(regex="x")
    request = make_request(7, (1, 2), sampling=SamplingParams(structured_outputs=asked))
    guide = Guide(compiler, None)  # type: ignore[arg-type]
    guide.open(GivenGroup(request))
    return guide, request, GuidedRow(3, request, drafts)


def test_there_is_a_mask_behind_each_draft():
    guide, _, row = guided((2, 4, 5), CountUp(90))
    plain = GuidedRow(5, row.request)
    for _ in range(2):  # what has been looked at is taken back
        masks = guide.mask([row, plain])()
        assert masks.rows == (3, 3, 3, 3, 5)
        words = np.frombuffer(masks.words, np.uint32).reshape(5, -1)
        assert [allowed(one) for one in words] == [[0, 1, 2], [3, 4, 5], [5, 6, 7], [6, 7, 8], [0, 1, 2]]


def test_nothing_may_follow_what_may_not_be():
    guide, _, row = guided((2, 40, 41), CountUp(90))
    words = np.frombuffer(guide.mask([row])().words, np.uint32).reshape(4, -1)
    assert [allowed(one) for one in words] == [[0, 1, 2], [3, 4, 5], [], []]


def test_a_matcher_that_breaks_fails_its_own_row(monkeypatch: pytest.MonkeyPatch):
    def broken(matcher: CountUp, ids: Sequence[int]) -> int:
        raise RuntimeError("broken")

    guide, request, row = guided((2,), CountUp(90))
    monkeypatch.setattr(CountUp, "advance", broken)
    words = np.frombuffer(guide.mask([row, GuidedRow(5, request)])().words, np.uint32).reshape(3, -1)
    assert [allowed(one) for one in words] == [[], [], [0, 1, 2]]
