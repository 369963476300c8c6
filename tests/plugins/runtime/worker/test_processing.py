"""Logits processors in the sampler and in the worker: which rows they see, when, and what a failing one does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from lsv.offers import LogitsProcessorOffer
from lsv.plugins.catalog import Catalog
from lsv.request.params import NO_TOKEN_LEFT
from lsv_base.errors import BadRequest, LsvError, RequestFailed
from lsv_runtime.logits_processor import History, LogitsProcessor
from lsv_runtime.worker.processing import Processors
from lsv_runtime.worker.sampling.sampler import NOT_FINITE, PROCESSOR_FAILED, sample_rows
from lsv_runtime.worker.slots import Slot
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.engine import engine_config

from .conftest import BareCatalog, BareDevice, Driver, make_config

MakeSlot = Callable[..., Slot]
VOCABULARY = 211


class Tokens(msgspec.Struct, frozen=True):
    """Arguments."""

    tokens: tuple[int, ...]


class Forbid(LogitsProcessor[Tokens]):
    """Forbids the tokens of its arguments; notes how many rows it got."""

    rows: list[int] = []

    def apply(self, logits: Tensor, states: Sequence[Tokens]) -> Tensor:
        self.rows.append(len(states))
        for row, state in zip(logits, states, strict=True):
            row[list(state.tokens)] = float("-inf")
        return logits


class Negate(LogitsProcessor[Any]):
    """Turns the order of tokens round, in a tensor of its own and another dtype."""

    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        return -logits.double()


class Watch(LogitsProcessor[History]):
    """Notes what comes by: every kind of call, the output so far, and the logits of token 0."""

    heard: list[Any] = []

    def begin(self, arguments: Any, history: History) -> History:
        self.heard.append(("begin", arguments, history.prompt, history.ids.tolist()))
        return history

    def end(self, state: History) -> None:
        self.heard.append(("end", state.ids.tolist()))

    def apply(self, logits: Tensor, states: Sequence[History]) -> Tensor:
        self.heard += [
            ("apply", state.output.tolist(), row[0].item()) for row, state in zip(logits, states, strict=True)
        ]
        return logits


class Break(LogitsProcessor[str]):
    """Fails where its arguments say."""

    def begin(self, arguments: str, history: History) -> str:
        if arguments == "begin":
            raise ValueError("it has no beginning")
        return arguments

    def end(self, state: str) -> None:
        if state == "end":
            raise ValueError("it has no end")

    def apply(self, logits: Tensor, states: Sequence[str]) -> Tensor:
        if "apply" in states:
            raise ValueError("it was not to be")
        if "nan" in states:
            logits = torch.full_like(logits, float("nan"))
            logits[:, 0] = float("-inf")
        return logits[:, 1:] if "shape" in states else logits


CLASSES = {kind.__name__.lower(): kind for kind in (Forbid, Negate, Watch, Break)}
OFFERS = (
    LogitsProcessorOffer("forbid", "forbid", arguments=f"{__name__}:Tokens"),
    LogitsProcessorOffer("early", "forbid", stage="constraints"),
    LogitsProcessorOffer("negate", "negate"),
    LogitsProcessorOffer("watch", "watch"),
    LogitsProcessorOffer("watch early", "watch", stage="constraints"),
    LogitsProcessorOffer("break", "break"),
)


class Manifest:
    @staticmethod
    def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
        return OFFERS


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    catalog = catalog_of(Manifest)
    monkeypatch.setattr(catalog, "load", lambda offer: CLASSES[offer.load])
    monkeypatch.setattr(Forbid, "rows", [])
    monkeypatch.setattr(Watch, "heard", [])
    return catalog


@pytest.fixture
def enter(catalog: Catalog, make_slot: MakeSlot) -> MakeSlot:
    """A slot whose request is with its processors."""
    processors = Processors(catalog, engine_config(), VOCABULARY, torch.device("cpu"))

    def make(*args: Any, processors: Processors = processors, **params: Any) -> Slot:
        slot = make_slot(*args, vocabulary=VOCABULARY, **params)
        slot.processing = processors.begin(slot.params.logits_processors, slot)
        return slot

    return make


def random_logits(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows)) * 3).to(dtype)


def forbid(*tokens: int) -> dict[str, Any]:
    return {"forbid": {"tokens": tokens}}


def best_of(logits: Tensor, count: int) -> list[int]:
    return logits.topk(count).indices.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.02}],
    ids=str,
)
def test_forbidding_is_what_bad_words_do(enter: MakeSlot, params: dict[str, Any], dtype: torch.dtype) -> None:
    logits = random_logits(6, dtype)
    banned = [best_of(row, 3) for row in logits]
    seeds = range(len(banned))
    theirs = [
        enter(engine_seed=seed, bad_words=tuple((token,) for token in tokens), **params)
        for seed, tokens in zip(seeds, banned, strict=True)
    ]
    ours = [
        enter(engine_seed=seed, logits_processors=forbid(*tokens), **params)
        for seed, tokens in zip(seeds, banned, strict=True)
    ]
    assert sample_rows(logits, ours).tokens == sample_rows(logits, theirs).tokens
    mixed = [*ours[:3], *theirs[3:]]
    assert sample_rows(logits, mixed).tokens == sample_rows(logits, theirs).tokens


def test_only_rows_that_ask_are_processed(enter: MakeSlot) -> None:
    logits = random_logits(5, torch.bfloat16)
    before = logits.clone()
    best = best_of(logits[2], 2)
    plain = [enter(engine_seed=row, temperature=0.8, logprobs=1) for row in range(5)]
    asking = [*plain[:2], enter(temperature=0.0, logprobs=1, logits_processors=forbid(best[0])), *plain[3:]]
    expected, found = sample_rows(logits, plain), sample_rows(logits, asking)
    assert found.tokens == [*expected.tokens[:2], best[1], *expected.tokens[3:]]
    assert Forbid.rows == [1]
    assert torch.equal(logits, before)
    assert found.logprobs[2].ids[0][1] == best[0]  # log probabilities are those of the model
    assert [found.logprobs[row] for row in (0, 1, 3, 4)] == [expected.logprobs[row] for row in (0, 1, 3, 4)]


def test_stages_stand_before_and_behind_what_parameters_change(enter: MakeSlot) -> None:
    logits = torch.full((1, VOCABULARY), 1.0)
    slot = enter(
        logit_bias={0: 5.0}, presence_penalty=0.5, output=(0,), logits_processors={"watch": 1, "watch early": 2}
    )
    sample_rows(logits, [slot])
    assert [heard[0] for heard in Watch.heard] == ["begin", "begin", "apply", "apply"]
    assert [heard[2] for heard in Watch.heard[2:]] == [1.0, 5.5]


def test_within_a_stage_names_tell_the_order(enter: MakeSlot) -> None:
    logits = random_logits(1)
    highest, lowest = best_of(logits[0], 1)[0], int(logits[0].argmin())
    asked = forbid(highest) | {"negate": None}  # a forbidden token becomes the likeliest of all
    assert sample_rows(logits, [enter(temperature=0.0, logits_processors=asked)]).failed == {0: PROCESSOR_FAILED}
    asked = {"negate": None, "early": Tokens((highest,))}
    assert sample_rows(logits, [enter(temperature=0.0, logits_processors={"negate": None})]).tokens == [lowest]
    assert sample_rows(logits, [enter(temperature=0.0, logits_processors=asked)]).failed == {0: PROCESSOR_FAILED}


def test_allowed_ids_keep_to_what_constraints_leave(enter: MakeSlot) -> None:
    asked = {"early": Tokens((5, 6))}
    slots = [enter(allowed_token_ids=ids, logits_processors=asked) for ids in ((5, 6, 7), (5, 6))]
    found = sample_rows(random_logits(2), slots)
    assert found.tokens[0] == 7
    assert found.failed == {1: NO_TOKEN_LEFT}


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("apply", "logits processors failed: break: ValueError: it was not to be"),
        ("shape", "logits processors failed: break: ValueError: it made logits (1, 210) of (1, 211)"),
        ("nan", PROCESSOR_FAILED),
    ],
)
def test_a_processor_that_fails_fails_its_rows(enter: MakeSlot, way: str, why: str) -> None:
    logits = random_logits(3)
    slots = [enter(temperature=0.0), enter(temperature=0.0, logits_processors={"break": way}), enter(temperature=0.0)]
    found = sample_rows(logits, slots)
    assert found.failed == {1: why}
    assert [found.tokens[row] for row in (0, 2)] == logits[[0, 2]].argmax(-1).tolist()


def test_rows_that_are_not_finite_or_have_nothing_left_fail_alone(enter: MakeSlot) -> None:
    logits = random_logits(3)
    logits[0, 7] = float("nan")
    asked = (forbid(1), forbid(*range(VOCABULARY)), forbid(1))
    for temperature in (0.0, 1.0):
        slots = [enter(temperature=temperature, logits_processors=one) for one in asked]
        assert sample_rows(logits, slots).failed == {0: NOT_FINITE, 1: NO_TOKEN_LEFT}


def test_what_cannot_begin_is_told(enter: MakeSlot) -> None:
    cases: tuple[tuple[dict[str, Any], type[LsvError], str], ...] = (
        ({"vanish": 1}, BadRequest, "there is no logits processor 'vanish' .*forbid, early"),
        ({"forbid": {"tokens": "x"}}, BadRequest, "forbid: Expected `array`, got `str`"),
        ({"watch": 1, "break": "begin"}, RequestFailed, "break: ValueError: it has no beginning"),
    )
    for asked, kind, message in cases:
        with pytest.raises(kind, match=message):
            enter(logits_processors=asked)
    assert [heard[0] for heard in Watch.heard] == ["begin", "end"]


class ProcessingCatalog(BareCatalog):
    """What else a worker asks for where requests use processors."""

    def __init__(self, device: BareDevice, catalog: Catalog) -> None:
        super().__init__(device)
        self._catalog = catalog

    def find(self, kind: type, name: str) -> Any:
        return self._catalog.find(kind, name) if kind is LogitsProcessorOffer else super().find(kind, name)

    def load(self, offer: Any) -> Any:
        return CLASSES[offer.load] if isinstance(offer, LogitsProcessorOffer) else super().load(offer)


@pytest.fixture
def start(device: BareDevice, catalog: Catalog, checkpoints: Callable[..., Any]) -> Callable[..., Driver]:
    """A started worker for a tiny model, to be driven by hand."""
    from lsv_runtime.worker.worker import Worker

    def make(**settings: Any) -> Driver:
        config = make_config(checkpoints("llama"), "llama", **settings)
        worker = Worker(config, ProcessingCatalog(device, catalog))  # type: ignore[arg-type]
        return Driver(worker, worker.start(lambda stage, done, total: None))

    return make


def test_a_processor_follows_its_request(start: Callable[..., Driver]) -> None:
    driver = start()
    tokens = driver.generate(driver.begin(0, range(9), logits_processors={"watch": "a"}), 3)
    assert [heard[:2] for heard in Watch.heard] == [("begin", "a"), *(("apply", tokens[:n]) for n in range(3))]
    Watch.heard.clear()
    # the same request after a preemption, with the output it had
    resumed = driver.begin(1, [*range(9), *tokens[:2]], 9, logits_processors={"watch": "a"})
    assert driver.run([(1, 0, 11, True)], [resumed], end=[0]).tokens == ((tokens[2],),)
    assert [heard[0] for heard in Watch.heard] == ["end", "begin", "apply"]
    assert Watch.heard[1] == ("begin", "a", 9, [*range(9), *tokens[:2]])
    assert Watch.heard[2][1] == tokens[:2]


def test_steps_launched_ahead_wait_for_the_token_a_processor_has_to_know(start: Callable[..., Driver]) -> None:
    driver = start()
    tokens = driver.generate(driver.begin(0, range(6)), 4)
    Watch.heard.clear()
    driver = start(in_flight=2)
    driver.launch([(0, 0, 6, True)], [driver.begin(0, range(6), logits_processors={"watch": None})])
    found: list[int] = []
    for step in range(3):
        driver.launch([(0, 6 + step, 1, True)])
        found += driver.worker.finish().tokens[0]
    assert [*found, *driver.worker.finish().tokens[0]] == tokens
    assert [heard[1] for heard in Watch.heard if heard[0] == "apply"] == [tokens[:n] for n in range(4)]


def test_a_slot_may_change_hands_while_its_row_is_under_way(start: Callable[..., Driver]) -> None:
    driver = start(in_flight=2)
    driver.launch([(0, 0, 4, True)], [driver.begin(0, range(4), logits_processors={"watch": "first"})])
    driver.launch([(0, 0, 5, True)], [driver.begin(0, range(5, 10), logits_processors={"watch": "other"})], end=[0])
    driver.worker.finish()
    (token,) = driver.worker.finish().tokens[0]
    driver.run([(0, 5, 1, True)])
    assert Watch.heard[-1][:2] == ("apply", [token])


def test_requests_whose_processor_cannot_begin_fail_alone(start: Callable[..., Driver]) -> None:
    driver = start()
    alone = driver.generate(driver.begin(0, range(6)), 1)
    asked = ({"vanish": 1}, {"break": "begin"}, {"forbid": {"tokens": [alone[0]]}}, {"break": "end"})
    begins = [driver.begin(slot, range(6), logits_processors=one) for slot, one in enumerate(asked, 1)]
    result = driver.run([(slot, 0, 6, True) for slot in range(1, 5)], begins)
    assert set(result.failed) == {0, 1}
    assert "'vanish'" in result.failed[0]
    assert "no beginning" in result.failed[1]
    assert result.tokens[2] != (alone[0],)
    assert result.tokens[3] == (alone[0],)
    driver.run([], end=range(5))
