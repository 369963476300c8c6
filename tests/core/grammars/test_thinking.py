"""Answers that think before they keep to their form: where the thoughts end, and how much of them there may be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.grammars.grammar import Vocabulary, rewindable
from lsv.grammars.guide import Guide
from lsv.grammars.thinking import Anything, ThinkingMatcher
from lsv.grammars.thinking_ahead import RewindableThinkingMatcher
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.structured import StructuredOutputsParams
from lsv.request.thinking import Thinking
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, engine_config
from lsv_testing.fakes.requests import make_spec

TEXTS = [
    b"<think>",
    b"</think>",
    b"<",
    b"/",
    b"th",
    b"ink>",
    b"ink>\n",
    b"a",
    b"b",
    b"\n",
    b"{",
    b"}",
    b"ink>{",
    b"ink>{b",
    b"</s>",
]
EOS = TEXTS.index(b"</s>")
WORDS = -(-len(TEXTS) // 32)


def encode(text: str) -> list[int]:
    """The longest tokens first."""
    found, left = [], text.encode()
    while left:
        token = max((t for t in TEXTS if left.startswith(t)), key=len)
        found.append(TEXTS.index(token))
        left = left[len(token) :]
    return found


VOCABULARY = Vocabulary(TEXTS, frozenset({EOS}), (EOS,), encode)


class Exactly:
    """An answer of these tokens."""

    def __init__(self, *texts: bytes) -> None:
        self.left = [TEXTS.index(text) for text in texts]
        self.fault: str | None = None

    @property
    def finished(self) -> bool:
        return not self.left

    def accept(self, ids: Sequence[int]) -> bool:
        for token in ids:
            if self.left[:1] != [token]:
                self.fault = f"{TEXTS[token]!r} may not follow"
                return False
            del self.left[0]
        return True

    def fill(self, row: memoryview) -> None:
        words = np.frombuffer(row, np.uint32)
        words[:] = 0
        words[0] = np.uint32(1 << (self.left[0] if self.left else EOS))


class Foreseen(Exactly):
    """The same, followed ahead."""

    def __init__(self, *texts: bytes) -> None:
        super().__init__(*texts)
        self.passed: list[int] = []

    def advance(self, ids: Sequence[int]) -> int:
        for count, token in enumerate(ids):
            if self.left[:1] != [token]:
                return count
            self.passed.append(self.left.pop(0))
        return len(ids)

    def rollback(self, count: int) -> None:
        assert count <= len(self.passed), "more is taken back than was taken"
        self.left[:0] = self.passed[len(self.passed) - count :]
        del self.passed[len(self.passed) - count :]


def marks(*, open: bool = False, budget: int | None = None) -> Thinking:
    return Thinking(begins=("<think>",), ends=("</think>",), open=open, budget=budget)


def allowed(matcher: ThinkingMatcher) -> set[bytes]:
    words = np.zeros(WORDS, np.uint32)
    matcher.fill(words.data)
    return {text for token, text in enumerate(TEXTS) if words[0] >> np.uint32(token) & 1}


def write(matcher: ThinkingMatcher, *texts: bytes) -> None:
    """Go on by tokens, each of which must be allowed."""
    for text in texts:
        assert text in allowed(matcher), text
        assert matcher.accept([TEXTS.index(text)]), matcher.fault


@pytest.mark.parametrize(
    "end",
    [
        (b"</think>",),
        (b"<", b"/", b"th", b"ink>"),
        (b"<", b"/", b"th", b"ink>\n"),
        (b"<", b"<", b"/", b"th", b"ink>"),
        (b"<", b"/", b"a", b"</think>"),
    ],
)
@pytest.mark.parametrize("open", [True, False])
def test_the_form_holds_from_the_end_of_the_thoughts_on(end: tuple[bytes, ...], open: bool):
    matcher = ThinkingMatcher(Exactly(b"{", b"}"), VOCABULARY, marks(open=open))
    write(matcher, *(() if open else (b"<think>",)), b"a", b"{", b"\n")
    assert allowed(matcher) == {*TEXTS} - {b"</s>"}, "thoughts may be anything, but not the end of the answer"
    write(matcher, *end)
    assert allowed(matcher) == {b"{"}
    write(matcher, b"{", b"}")
    assert matcher.finished


def test_what_comes_in_one_token_with_the_mark_belongs_to_the_answer():
    for form, right in ((Exactly(b"{", b"}"), True), (Exactly(b"a"), False)):
        matcher = ThinkingMatcher(form, VOCABULARY, marks(open=True))
        write(matcher, b"<", b"/", b"th")
        assert matcher.accept([TEXTS.index(b"ink>{")]) is right
        assert (allowed(matcher), matcher.fault is None) == (({b"}"}, True) if right else (set(), False))


def test_an_answer_may_begin_at_once_where_the_prompt_opens_no_thoughts():
    matcher = ThinkingMatcher(Exactly(b"{", b"}"), VOCABULARY, marks())
    assert allowed(matcher) == {b"{", b"<think>"}
    write(matcher, b"{")
    assert allowed(matcher) == {b"}"}


def test_a_mark_of_several_tokens_is_written_to_its_end():
    spelled = Thinking(begins=("<thinking",), ends=("</think>",))
    broken = Vocabulary([*TEXTS[2:], b"ing"], frozenset(), (EOS - 2,), lambda text: [0, 2, len(TEXTS) - 2])
    matcher = ThinkingMatcher(Exactly(b"/"), broken, spelled)
    matcher._answer.left = [1]  # type: ignore[attr-defined]
    words = np.zeros(1, np.uint32)
    for token, may_follow in ((0, 0b11), (2, 0b100), (len(TEXTS) - 2, 1 << (len(TEXTS) - 2))):
        matcher.fill(words.data)
        assert words[0] == may_follow
        matcher.accept([token])
    assert not matcher.finished


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("open", [True, False])
def test_a_budget_closes_the_thoughts(budget: int, open: bool):
    matcher = ThinkingMatcher(Exactly(b"{"), VOCABULARY, marks(open=open, budget=budget))
    write(matcher, *(() if open else (b"<think>",)), *[b"a"] * budget)
    assert allowed(matcher) == {b"</think>"}
    write(matcher, b"</think>", b"{")
    assert matcher.finished


def test_a_budget_closes_the_thoughts_of_an_answer_without_a_form():
    matcher = ThinkingMatcher(Anything(), VOCABULARY, marks(open=True, budget=2))
    write(matcher, b"a")
    assert b"</s>" in allowed(matcher)
    write(matcher, b"<")
    assert not matcher.free
    write(matcher, b"</think>")
    assert matcher.free
    assert allowed(matcher) == {*TEXTS}
    assert not matcher.finished


@pytest.mark.parametrize(
    ("begin", "free"), [((b"a",), True), ((b"\n", b"<", b"a"), True), ((b"\n", b"<think>"), False)]
)
def test_an_answer_without_thoughts_is_free(begin: tuple[bytes, ...], free: bool):
    matcher = ThinkingMatcher(Anything(), VOCABULARY, marks(budget=2))
    write(matcher, *begin)
    assert matcher.free is free


def test_what_the_guide_takes_for_the_end_is_what_readers_take_for_it():
    """However thoughts are cut into tokens, the form begins behind the first mark of the text."""
    draw = random.Random(5)
    for _ in range(500):
        tokens = [draw.choice(TEXTS[:11]) for _ in range(30)]
        matcher = ThinkingMatcher(Anything(), VOCABULARY, marks(open=True))
        ended = None
        for count, token in enumerate(tokens, 1):
            matcher.accept([TEXTS.index(token)])
            if matcher.free and ended is None:
                ended = count
        first = next((n for n in range(31) if b"</think>" in b"".join(tokens[:n])), None)
        assert ended == first


def test_a_budget_is_a_number():
    with pytest.raises(BadRequest, match="thinking_token_budget"):
        marks(budget=-2)


# In the engine

END = 90
"""The token that ends the thoughts of the fake model."""


class Tail:
    """An answer of four tokens, all the same one."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.fault: str | None = None

    def begin(self) -> Tail:
        return Tail()

    @property
    def finished(self) -> bool:
        return len(self.seen) == 4

    def accept(self, ids: Sequence[int]) -> bool:
        assert {*ids} <= {7}, "the form did not hold"
        self.seen += ids
        return True

    def fill(self, row: memoryview) -> None:
        np.frombuffer(row, np.uint32)[:] = [1 << 7, *[0] * (row.nbytes // 4 - 1)]


class Compiler:
    vocab_size = 0
    eos = (96,)

    def __init__(self) -> None:
        tokens = [b"w%d " % token for token in range(97)]
        tokens[END] = b"</think>"
        self.vocabulary = Vocabulary(tokens, frozenset({96}), (96,), lambda text: [END])

    def find(self, asked: StructuredOutputsParams | None, salt: bytes = b"") -> Tail | Anything:
        return Anything() if asked is None else Tail()

    def first(self, asked: StructuredOutputsParams | None, salt: bytes) -> None:
        """Not known ahead."""

    def close(self) -> None:
        pass


def make(depth: int, **changes: object) -> Engine[str]:
    executor = FakeExecutor()
    executor.depth = depth
    engine: Engine[str] = Engine(
        engine_config(**changes), executor, Fcfs(),
        parts=lambda host: [Guide(Compiler(), host)],  # type: ignore[arg-type]
        now=FakeClock(),
    )  # fmt: skip
    engine.start(lambda stage, done, total: None)
    return engine


def ask(id: int, budget: int | None, *, form: bool, **params: object) -> Submit:
    asked = StructuredOutputsParams(regex="x") if form else None
    given = {"temperature": 1.0, "max_tokens": 60, "structured_outputs": asked, **params}
    spec = make_spec(
        (id + 1,) * 8, SamplingParams(**given), request_id=f"r{id}", thinking=marks(open=True, budget=budget)
    )
    return Submit(id=id, spec=spec, stop_ids=(96,))


def answers(engine: Engine[str]) -> dict[tuple[int, int], list[Update]]:
    found: dict[tuple[int, int], list[Update]] = {}
    for _ in range(2000):
        if not engine.has_work:
            return found
        for update in engine.step().get("a", []):
            found.setdefault((update.id, update.index), []).append(update)
    raise AssertionError("not finished")


@pytest.mark.parametrize("changes", [{}, {"num_blocks": 24}], ids=["room", "preemption"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_forms_follow_thoughts_with_plans_in_flight(depth: int, changes: dict[str, object]):
    engine = make(depth, **changes)
    for id in range(6):
        engine.submit("a", ask(id, 5 * id, form=True, n=2))
    for updates in answers(engine).values():
        tokens = [token for update in updates for token in update.tokens]
        assert tokens[-5:] == [END, 7, 7, 7, 7]
        assert len(tokens) <= 5 * updates[0].id + 5
        assert (updates[-1].finish, updates[-1].complete) == (FinishReason.STOP, True)
    assert bool(changes) is bool(engine.stats.preemptions_total)


@pytest.mark.parametrize("depth", [1, 3])
def test_answers_that_have_thought_are_planned_ahead_again(depth: int):
    engine = make(depth)
    engine.submit("a", ask(0, 4, form=False, min_tokens=60))
    planned: list[bool] = []
    submit = engine._executor.submit
    engine._executor.submit = lambda plan, *masks: (planned.append(plan.masked), submit(plan, *masks))[1]  # type: ignore[method-assign]
    ((_, updates),) = answers(engine).items()
    tokens = [token for update in updates for token in update.tokens]
    assert END in tokens[:5]
    assert len(tokens) == 60
    assert sum(planned) == tokens.index(END) + 1, "steps are masked up to the end of the thoughts, and no further"


def follow(matcher: ThinkingMatcher, tokens: Sequence[int]) -> int:
    """How many of these tokens masks allow, one after another, and the matcher goes on by."""
    for count, token in enumerate(tokens):
        if TEXTS[token] not in allowed(matcher) or not matcher.accept([token]):
            return count
    return len(tokens)


@pytest.mark.parametrize("budget", [None, 0, 3])
@pytest.mark.parametrize("open", [True, False])
@pytest.mark.parametrize("form", [Foreseen, Anything])
def test_an_answer_is_where_it_was_after_it_was_followed_ahead(form: type, open: bool, budget: int | None):
    """Ahead it goes as far as masks let it, wherever marks and budgets end."""
    texts = () if form is Anything else (b"{", b"a", b"}")
    ways = [
        (b"a", b"<", b"/", b"th", b"ink>", b"{", b"a", b"}"),
        (b"<think>", b"a", b"\n", b"</think>", b"{", b"a", b"}"),
        (b"<", b"th", b"ink>", b"<", b"/", b"th", b"ink>{", b"a", b"}"),
        (b"\n", b"<think>", b"b", b"<", b"/", b"th", b"ink>\n", b"{"),
        (b"<think>", b"<", b"/", b"th", b"ink>{b"),
    ]
    rng, longest = random.Random(5), 0
    for way in ways * 8:
        matcher = RewindableThinkingMatcher(form(*texts), VOCABULARY, marks(open=open, budget=budget))
        said: list[int] = []
        for text in way:
            token = TEXTS.index(text)
            if text not in allowed(matcher) or not matcher.accept([token]) or matcher.finished:
                break
            said.append(token)
            ahead = [TEXTS.index(text) for text in way[len(said) :]]
            drafts = [*ahead[: rng.randint(0, len(ahead))], *(rng.randrange(EOS) for _ in range(3))]
            plain = ThinkingMatcher(form(*texts), VOCABULARY, marks(open=open, budget=budget))
            assert follow(plain, said) == len(said)
            before, expected = allowed(matcher), follow(plain, drafts)
            assert matcher.advance(drafts) == expected
            assert (matcher.finished, matcher.free) == (plain.finished, plain.free)
            assert plain.fault is not None or allowed(matcher) == allowed(plain)
            matcher.rollback(expected)
            assert (allowed(matcher), matcher.fault) == (before, None)
            longest = max(longest, expected)
    assert longest > 4 or budget == 0


def test_a_form_that_cannot_be_followed_ahead_is_followed_all_the_same():
    assert rewindable(ThinkingMatcher(Exactly(b"{"), VOCABULARY, marks())) is None
    assert rewindable(RewindableThinkingMatcher(Foreseen(b"{"), VOCABULARY, marks())) is not None
