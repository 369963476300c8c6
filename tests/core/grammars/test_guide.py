"""Grammars in the engine, over a fake worker and a fake back end: waiting, masks, endings, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec
import pytest

from lsv.config import Choices
from lsv.engine.engine import Engine
from lsv.engine.messages import Finish, Submit, Update
from lsv.grammars.compiler import GrammarCompiler
from lsv.grammars.guide import Guide
from lsv.offers import GrammarOffer
from lsv.plugins.grammars import choose_backend, find_backend
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.structured import StructuredOutputsParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, ConfigError, LsvError, from_record
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, engine_config
from lsv_testing.fakes.grammar import EOS, CountUp, FakeCompiler
from lsv_testing.fakes.requests import make_spec


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


def make(compiler: object, depth: int = 1, **changes: object) -> Engine[str]:
    executor = FakeExecutor()
    executor.depth = depth
    engine: Engine[str] = Engine(
        engine_config(**changes), executor, Fcfs(),
        parts=lambda host: [Guide(compiler, host)],  # type: ignore[arg-type]
        now=FakeClock(),
    )  # fmt: skip
    engine.start(lambda stage, done, total: None)
    return engine


def ask(id: int, regex: str | None = "x", prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> Submit:
    form = None if regex is None else StructuredOutputsParams(regex=regex)
    params = {"temperature": 1.0, "max_tokens": 60, "structured_outputs": form, **params}
    return Submit(id=id, spec=make_spec(prompt, SamplingParams(**params), request_id=f"r{id}"), stop_ids=(EOS,))


def run(engine: Engine[str], most: int = 1000) -> list[Update]:
    news: list[Update] = []
    for _ in range(most):
        if not engine.has_work:
            return news
        news += engine.step().get("a", [])
    raise AssertionError("not finished")


def tokens(updates: Sequence[Update], id: int, index: int = 0) -> list[int]:
    return [token for update in updates if (update.id, update.index) == (id, index) for token in update.tokens]


def check(answer: Sequence[int], last: int) -> None:
    """Whether an answer is one of those that count up."""
    matcher = CountUp(last)
    assert matcher.accept(answer)
    assert matcher.finished


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_answers_follow_their_grammars_with_plans_in_flight(compiler: FakeCompiler, depth: int):
    engine = make(compiler, depth)
    compiler.found = {"x": CountUp(20), "y": CountUp(7)}
    for id in range(8):
        engine.submit("a", ask(id, (None, "x", "y")[id % 3], (id + 1,) * (id + 1)))
    news = run(engine)
    plain = make(compiler, depth)
    for id in range(0, 8, 3):
        plain.submit("a", ask(id, None, (id + 1,) * (id + 1)))
    alone = run(plain)
    for id in range(8):
        if id % 3:
            check(tokens(news, id), (0, 20, 7)[id % 3])
            last = [update for update in news if update.id == id][-1]
            assert (last.finish, last.complete) == (FinishReason.STOP, True)
        else:
            assert tokens(news, id) == tokens(alone, id)


def test_preempted_answers_go_on_where_they_were(compiler: FakeCompiler):
    engine = make(compiler, 2, num_blocks=24)
    compiler.found = {"x": CountUp(50)}
    for id in range(6):
        engine.submit("a", ask(id, prompt=(id + 1,) * 8))
    news = run(engine)
    assert engine.stats.preemptions_total
    for id in range(6):
        check(tokens(news, id), 50)


def test_all_candidates_follow_the_grammar(compiler: FakeCompiler):
    engine = make(compiler, 2)
    compiler.found = {"x": CountUp(30)}
    engine.submit("a", ask(0, n=4))
    news = run(engine)
    for index in range(4):
        check(tokens(news, 0, index), 30)


def test_masks_are_filled_beside_the_step(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch):
    """A step is on its way before its masks are there."""
    engine, gate = make(compiler), threading.Event()
    fill = CountUp.fill

    def wait_for_the_step(matcher: CountUp, row: memoryview) -> None:
        assert gate.wait(20), "the step was not submitted before its masks were filled"
        gate.clear()
        fill(matcher, row)

    submit = engine._executor.submit
    monkeypatch.setattr(CountUp, "fill", wait_for_the_step)
    monkeypatch.setattr(engine._executor, "submit", lambda plan, *masks: (gate.set(), submit(plan, *masks)))
    compiler.found = {"x": CountUp(9)}
    engine.submit("a", ask(0))
    check(tokens(run(engine), 0), 9)


def test_who_waits_for_a_grammar_blocks_nobody(compiler: FakeCompiler):
    engine = make(compiler)
    engine.submit("a", ask(0))
    engine.submit("a", ask(1, None, max_tokens=5))
    news = [update for _ in range(10) for update in engine.step().get("a", [])]
    assert len(tokens(news, 1)) == 5
    assert tokens(news, 0) == []
    assert engine.stalled
    assert compiler.waited
    compiler.found["x"] = CountUp(9)
    check(tokens(run(engine), 0), 9)


def test_a_grammar_that_cannot_be_had_refuses_its_request(compiler: FakeCompiler):
    engine = make(compiler)
    engine.submit("a", ask(0, n=2))
    engine.step()
    compiler.found["x"] = BadRequest("structured_outputs: no", param="structured_outputs")
    news = run(engine)
    assert [update.finish for update in news] == [FinishReason.ERROR] * 2
    for update in news:
        assert update.error is not None
        error = from_record(update.error)
        assert (error.status, error.param) == (400, "structured_outputs")
    for id in (1, 2):
        with pytest.raises(BadRequest) as refused:
            engine.submit("a", ask(id))
        assert refused.value is not compiler.found["x"]
    assert not engine.has_work


def test_one_who_leaves_while_waiting_is_forgotten(compiler: FakeCompiler):
    engine = make(compiler)
    engine.submit("a", ask(0))
    engine.step()
    engine.abort("a", [0])
    assert not engine.has_work
    compiler.found["x"] = CountUp(9)
    assert engine.step() == {}


def test_an_answer_that_cannot_go_on_fails_alone(compiler: FakeCompiler):
    engine = make(compiler)
    compiler.found = {"x": CountUp(20, stuck=20), "y": CountUp(20)}
    engine.submit("a", ask(0, "x"))
    engine.submit("a", ask(1, "y"))
    news = run(engine)
    failed = [update for update in news if update.id == 0][-1]
    assert failed.finish is FinishReason.ERROR
    assert failed.error is not None
    assert "stuck" in failed.error.message
    check(tokens(news, 1), 20)


def test_an_end_at_max_tokens_is_an_end(compiler: FakeCompiler):
    engine = make(compiler)
    compiler.found = {"x": CountUp(0)}
    engine.submit("a", ask(0, max_tokens=1))
    (update,) = run(engine)
    assert (update.tokens, update.finish, update.complete) == ((0,), FinishReason.STOP, True)


def test_ends_are_ignored_as_long_as_anything_else_may_come(compiler: FakeCompiler):
    compiler.found = {"x": CountUp(40, ends=range(1, 40))}
    answers = []
    for ignore in (False, True):
        engine = make(compiler)
        for id in range(8):
            engine.submit("a", ask(id, prompt=(id + 1,), ignore_eos=ignore))
        news = run(engine)
        answers += [[tokens(news, id)[-1] for id in range(8)]]
    assert EOS in answers[0]
    assert answers[1] == [40] * 8


def test_a_client_may_end_an_answer_before_its_grammar(compiler: FakeCompiler):
    engine = make(compiler)
    compiler.found = {"x": CountUp(80)}
    engine.submit("a", ask(0))
    engine.step()
    engine.finish("a", Finish(0, 0, keep=1))
    assert not engine.has_work


def test_an_engine_without_grammars_refuses():
    engine: Engine[str] = Engine(engine_config(), FakeExecutor(), Fcfs(), now=FakeClock())
    engine.start(lambda *_: None)
    with pytest.raises(BadRequest, match="structured_outputs: this engine was started without the part 'grammar'"):
        engine.submit("a", ask(0))


# The compiler


class Backend:
    """Compiles as the test says; counts."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.how: Callable[[StructuredOutputsParams], CountUp] = lambda asked: CountUp(3)

    def compile(self, asked: StructuredOutputsParams) -> CountUp:
        self.compiled.append(asked.text)
        return self.how(asked)


class Manifest:
    @staticmethod
    def lsv_grammars() -> list[GrammarOffer]:
        return [GrammarOffer("plain", "plain"), GrammarOffer("best", "best", rank=2, aliases=("other", "plain"))]


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, Backend]:
    return {"plain": Backend(), "best": Backend()}


@pytest.fixture
def make_compiler(backends: dict[str, Backend], monkeypatch: pytest.MonkeyPatch) -> Callable[..., GrammarCompiler]:
    catalog = catalog_of(Manifest)
    monkeypatch.setattr(catalog, "load", lambda offer: lambda vocabulary: backends[offer.load])
    monkeypatch.setattr("lsv.grammars.compiler.read_vocabulary", lambda tokenizer, size: None)
    monkeypatch.setattr("lsv.grammars.compiler.Tokenizer.of", lambda config: None)

    def make(**given: float) -> GrammarCompiler:
        compiler = GrammarCompiler(catalog, engine_config(grammars=choose_backend(catalog, "auto", Choices())), **given)
        compiler.vocab_size = 128
        return compiler

    return make


def regex(text: str, backend: str | None = None) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=text, backend=backend)


def get(compiler: GrammarCompiler, asked: StructuredOutputsParams) -> object:
    while (found := compiler.find(asked)) is None:
        compiler.wait(1.0)
    return found


def test_the_best_back_end_compiles_unless_another_is_named(make_compiler, backends):
    compiler = make_compiler()
    for name in (None, "auto", "best", "plain"):
        assert isinstance(get(compiler, regex(str(name), name)), CountUp)
    assert backends["best"].compiled == ["None", "auto", "best"]
    assert backends["plain"].compiled == ["plain"]
    unknown = get(compiler, regex("x", "nobody"))
    assert isinstance(unknown, BadRequest)
    assert "plain" in unknown.message


@pytest.mark.row("F-249")
def test_an_operator_chooses_the_back_end():
    catalog, choices = catalog_of(Manifest), Choices()
    assert choose_backend(catalog, "auto", choices) == "best"
    assert choose_backend(catalog, "plain", choices) == "plain"
    assert choices.reasons == []
    assert choose_backend(catalog, "other", choices) == "best"
    (reason,) = choices.reasons
    assert (reason.value, reason.why) == ("best", "it does the work of other")
    assert find_backend(catalog, "auto", "plain").name == "plain"
    assert find_backend(catalog, "other", "plain").name == "best"
    with pytest.raises(ConfigError, match="nobody"):
        choose_backend(catalog, "nobody", choices)
    assert choose_backend(catalog_of(), "auto", choices) is None
    with pytest.raises(BadRequest, match="no plugin"):
        find_backend(catalog_of(), None, None)


def test_grammars_are_compiled_once_and_the_oldest_forgotten(make_compiler, backends):
    compiler = make_compiler(kept=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        get(compiler, regex(text))
    assert backends["best"].compiled == ["a", "b", "c", "b"]


def test_what_takes_too_long_is_refused_and_stays_so(make_compiler, backends):
    gate, begun = threading.Event(), threading.Event()

    def stall(asked: StructuredOutputsParams) -> CountUp:
        begun.set()
        gate.wait(20)
        return CountUp(1)

    backends["best"].how = stall
    compiler = make_compiler(seconds=0.0)
    compiler.find(regex("slow"))
    assert begun.wait(20)
    while (found := compiler.find(regex("slow"))) is None:
        pass
    gate.set()
    assert isinstance(found, BadRequest)
    assert "simplify" in found.message
    compiler.close()
    assert compiler.find(regex("slow")) is found


def test_the_time_it_takes_to_make_a_back_end_is_not_counted(make_compiler, monkeypatch: pytest.MonkeyPatch):
    """It imports large libraries, or reads a large vocabulary, once."""
    gate, making = threading.Event(), threading.Event()

    def make(offer: GrammarOffer) -> object:
        making.set()
        gate.wait(20)
        return lambda vocabulary: Backend()

    compiler = make_compiler(seconds=0.5)
    monkeypatch.setattr(compiler._catalog, "load", make)
    assert compiler.find(regex("x")) is None
    assert making.wait(20)
    monkeypatch.setattr("lsv.grammars.compiler.time.monotonic", lambda: 1e9)
    assert compiler.find(regex("x")) is None
    gate.set()
    assert isinstance(get(compiler, regex("x")), CountUp)


def test_a_back_end_that_breaks_fails_the_request(make_compiler, backends):
    def fail(asked: StructuredOutputsParams) -> CountUp:
        raise RuntimeError("broken")

    backends["best"].how = fail
    compiler = make_compiler()
    found = get(compiler, regex("x"))
    assert isinstance(found, LsvError)
    assert found.status == 500
    backends["best"].how = lambda asked: CountUp(1)
    assert isinstance(get(compiler, regex("x")), CountUp)


def test_parameters_travel():
    asked = ask(0, n=2)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=Submit)
    assert again.spec.sampling == asked.spec.sampling


def test_each_tenant_has_its_own_grammars(make_compiler, backends: dict[str, Backend]):
    """A shared cache would reveal by timing what other tenants have requested."""
    compiler, asked = make_compiler(), regex("x")
    first = get(compiler, asked)
    assert compiler.find(asked) is first
    assert compiler.find(asked, b"b") is None
    while (other := compiler.find(asked, b"b")) is None:
        compiler.wait(1.0)
    assert other is not first
    assert compiler.find(asked) is first
