"""Steps in other forms than the plan's: padded to shapes, in a padded layout, launched before the one ahead is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lsv.scheduler.plan import Kind, Rows, StepPlan
from lsv_runtime.attention import BatchLayout
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy
from lsv_runtime.nn import model as nn_model
from lsv_runtime.worker.inputs import Batch, pad_batch

LENGTHS = (5, 9, 3, 17)


class DecodeBuckets(ShapePolicy):
    """Rows in powers of two."""

    def pad(self, shape: Shape) -> Shape:
        return shape if shape.query > 1 else Shape("decode", 1 << (shape.rows - 1).bit_length(), 1, 8)

    def warmup(self) -> Iterator[Shape]:
        for rows in (1, 2, 4):
            yield Shape("decode", rows, 1, 8)


class Buckets(ShapePolicy):
    """Rows in powers of two; prompts in multiples of 8, at most 24."""

    def pad(self, shape: Shape) -> Shape:
        rows = 1 << (shape.rows - 1).bit_length()
        query = shape.query if shape.query == 1 else -(-shape.query // 8) * 8
        return shape if query > 24 else Shape("decode" if query == 1 else "prefill", rows, query, 8)

    def warmup(self) -> Iterator[Shape]:
        for rows in (1, 2, 4):
            for query in (1, 8, 16, 24):
                yield self.pad(Shape("", rows, query, 0))

    def describe(self, shape: Shape) -> str:
        return f"(form, {shape.rows}, {shape.query})"


class TokenSizes(ShapePolicy):
    """Steps with prompts are padded to a multiple of 8 tokens, in 5 rows."""

    def measure(self, kind: str, query: Any, context: Any) -> Shape:
        return Shape("tokens", 5, 1, 8, tokens=-(-int(query.sum()) // 8) * 8)

    def warmup(self) -> Iterator[Shape]:
        for tokens in (16, 24, 40):
            yield Shape("tokens", 5, 1, 8, tokens)


@pytest.fixture
def plain(drive: Callable[..., Any]) -> list[list[int]]:
    """Greedy and drawn tokens of four requests, one after the other and unpadded."""
    return [generate(drive(), [request]) for request in enumerate(LENGTHS)]


def begin(driver: Any, slot: int, length: int) -> Any:
    params = {"temperature": 0.9, "top_p": 0.8} if slot % 2 else {}
    return driver.begin(slot, [(7 * slot + 3 * place) % 300 for place in range(length)], seed=slot, **params)


def generate(driver: Any, requests: Any, steps: int = 6) -> list[int]:
    """Prompts together, then decoding together; tokens of all requests, request by request."""
    requests = list(requests)
    entering = [begin(driver, slot, length) for slot, length in requests]
    results = [driver.run([(slot, 0, length, True) for slot, length in requests], entering)]
    for step in range(steps):
        results.append(driver.run([(slot, length + step, 1, True) for slot, length in requests]))
    return [token for row in range(len(requests)) for result in results for token in result.tokens[row]]


@pytest.mark.parametrize("layout", ["flat", "padded"])
def test_padding_changes_no_token(
    layout: str, drive: Callable[..., Any], device: Any, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Buckets if layout == "padded" else DecodeBuckets
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: policy(limits))
    driver = drive(settings={"layout": layout})
    device.compiled_runs.clear()
    tokens = generate(driver, list(enumerate(LENGTHS))[:3])
    assert tokens == [token for row in plain[:3] for token in row]
    decoding = Shape("decode", 4, 1, 8)
    prompts = [Shape("prefill", 4, 16, 8)] if layout == "padded" else []
    assert device.compiled_runs == [*prompts, *[decoding] * 6]


def test_steps_padded_to_a_number_of_tokens(
    drive: Callable[..., Any], device: Any, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several rows, with filling tokens and without; what has no shape runs as it comes."""
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: TokenSizes(limits))
    driver = drive()
    device.compiled_runs.clear()
    begun = [begin(driver, *request) for request in enumerate(LENGTHS)]
    prompts = [(slot, 0, length, True) for slot, length in enumerate(LENGTHS)]
    found = [driver.run(prompts[:2], begun[:2]), driver.run(prompts[2:], begun[2:])]
    assert [token for result in found for row in result.tokens for token in row] == [row[0] for row in plain]
    assert [shape.tokens for shape in device.compiled_runs] == [16, 24]
    assert not any(result.unwarmed for result in found)
    found = [driver.run([(0, 5, 1, True), (3, 17, 1, True)])]
    assert [row[0] for row in found[0].tokens] == [plain[0][1], plain[3][1]]


class Others:
    """In the place of ``SharedExperts``: ``size`` tokens are what all replicas give, 0 where they don't agree."""

    def __init__(self) -> None:
        self.size = 0
        self.told: list[tuple[int, int, bool]] = []

    def begin(self, tokens: int, size: int, *, ready: bool) -> int:
        self.told.append((tokens, size, ready))
        return self.size


@pytest.mark.row("F-570")
@pytest.mark.parametrize("layout", ["flat", "padded"])
def test_steps_with_shared_experts_are_compiled_in_the_size_of_all(
    layout: str, drive: Callable[..., Any], device: Any, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def widen(self: Any, shape: Shape, size: int) -> Shape:
        return Shape("decode", size, 1, 8) if shape.query == 1 and shape.rows <= size else shape

    policy = Buckets if layout == "padded" else DecodeBuckets
    monkeypatch.setattr(policy, "widen", widen)
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: policy(limits))
    driver, others = drive(settings={"layout": layout}), Others()
    driver.worker.live.runner._shared = others
    device.compiled_runs.clear()
    found = [driver.run([(0, 0, 5, True)], [begin(driver, 0, 5)]).tokens[0][0]]
    for step, others.size in enumerate((1, 4, 3, 0)):
        found.append(driver.run([(0, 5 + step, 1, True)]).tokens[0][0])
    assert found == plain[0][:5]
    assert device.compiled_runs == [Shape("decode", 1, 1, 8), Shape("decode", 4, 1, 8)], "there is none of 3"
    prompt = (8, 8, True) if layout == "padded" else (5, 5, False)
    assert others.told == [prompt, *[(1, 1, True)] * 4]


def test_filling_tokens_are_shared_by_filling_rows() -> None:
    tables = (np.array([[1, 0], [2, 3]], np.int32),)
    layout = BatchLayout(np.array([2, 3], np.int32), np.array([2, 7], np.int32), tables)
    batch = Batch(np.arange(1, 6), np.array([[0, 1, 4, 5, 6]]), layout, np.array([1, 4]))
    for tokens, more in ((5, [0, 0, 0]), (7, [1, 1, 0]), (12, [3, 2, 2])):
        padded = pad_batch(batch, Shape("tokens", 5, 12, 2, tokens), padded=False)
        assert padded.layout.query.tolist() == [2, 3, *more]
        assert padded.layout.context.tolist() == [2, 7, *more]
        assert padded.ids.tolist() == [1, 2, 3, 4, 5, *[0] * (tokens - 5)]
        assert padded.layout.tables[0].tolist() == [[1, 0], [2, 3], *[[0, 0]] * 3]
        assert (padded.last.tolist(), padded.rows) == ([1, 4], 2)


def test_the_head_is_part_of_a_compiled_decoding_step(
    drive: Callable[..., Any], device: Any, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of one it runs for prompts alone, over the rows that want logits."""
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: DecodeBuckets(limits))
    driver = drive()
    model, inside, heads = driver.worker.live.runner.model, [False], []
    head, run = model.head.forward, nn_model.run_to_logits

    def count(states: Any, step: Any) -> Any:
        heads.append((inside[0], len(states)))
        return head(states, step)

    def within(*args: Any) -> Any:
        inside[0] = True
        try:
            return run(*args)
        finally:
            inside[0] = False

    monkeypatch.setattr(model.head, "forward", count)
    monkeypatch.setattr(nn_model, "run_to_logits", within)
    requests = list(enumerate(LENGTHS))[:3]
    assert generate(driver, requests, steps=2) == [token for row in plain[:3] for token in row[:3]]
    assert heads == [(False, 3), (True, 4), (True, 4)]


def test_a_form_that_is_not_ready_is_counted_and_said_once(
    drive: Callable[..., Any], device: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: Buckets(limits))
    driver = drive(settings={"layout": "padded"})
    for slot in (0, 1):
        entering = [driver.begin(slot, [1] * 30)]
        assert driver.run([(slot, 0, 30, True)], entering, kind=Kind.PREFILL).unwarmed
    assert not driver.run([(0, 30, 1, True)]).unwarmed
    assert caplog.text.count("Configuration: (form, 1, 30) was not warmed-up!") == 1


def test_a_form_that_is_not_meant_to_be_ready_is_not_told_of(
    drive: Callable[..., Any], device: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Buckets, "prepares", lambda self, shape: shape.query < 30, raising=False)
    monkeypatch.setattr(type(device), "shapes", lambda self, limits: Buckets(limits))
    driver = drive(settings={"layout": "padded"})
    assert not driver.run([(0, 0, 30, True)], [driver.begin(0, [1] * 30)], kind=Kind.PREFILL).unwarmed
    assert "not warmed-up" not in caplog.text


def test_steps_launched_ahead_give_the_same_tokens(drive: Callable[..., Any], plain: list[list[int]]) -> None:
    driver = drive(settings={"in_flight": 2})
    requests = list(enumerate(LENGTHS))
    driver.launch([(slot, 0, length, True) for slot, length in requests], [begin(driver, *one) for one in requests])
    results = []
    for step in range(6):
        driver.launch([(slot, length + step, 1, True) for slot, length in requests])
        results.append(driver.worker.finish())
    results.append(driver.worker.finish())
    for slot, expected in enumerate(plain):
        assert [result.tokens[slot][0] for result in results] == expected


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.5}, {"min_tokens": 3}, {"logit_bias": {5: 4.0}}])
def test_what_the_host_must_know_is_waited_for(drive: Callable[..., Any], params: dict[str, Any]) -> None:
    def run(in_flight: int) -> list[int]:
        driver = drive(settings={"in_flight": in_flight})
        driver.launch([(0, 0, 6, True)], [driver.begin(0, range(6), **params)])
        tokens: list[int] = []
        for step in range(8):
            if in_flight == 1:
                tokens += driver.worker.finish().tokens[0]
            driver.launch([(0, 6 + step, 1, True)])
            if in_flight == 2:
                tokens += driver.worker.finish().tokens[0]
        return [*tokens, *driver.worker.finish().tokens[0]]

    assert run(2) == run(1)


def test_log_probabilities_of_steps_launched_ahead(drive: Callable[..., Any]) -> None:
    driver = drive(settings={"in_flight": 2})
    driver.launch([(0, 0, 6, True)], [driver.begin(0, range(6), logprobs=2)])
    driver.launch([(0, 6, 1, True)])
    for _ in range(2):
        result = driver.worker.finish()
        assert result.logprobs[0].ids[0][0] == result.tokens[0][0]


def test_a_request_that_ends_while_its_row_is_under_way_disturbs_nobody(drive: Callable[..., Any]) -> None:
    driver = drive(settings={"in_flight": 2})
    driver.launch([(0, 0, 4, True)], [driver.begin(0, range(4))])
    driver.launch([(0, 4, 1, True)])
    driver.worker.finish()
    driver.launch([(0, 0, 5, True)], [driver.begin(0, range(5, 10))], end=[0])
    driver.worker.finish()
    alone = drive()
    expected = alone.run([(0, 0, 5, True)], [alone.begin(0, range(5, 10))]).tokens
    assert driver.worker.finish().tokens == expected


def test_padding_keeps_tokens_at_the_front_of_their_rows() -> None:
    layout = BatchLayout(
        np.array([2, 3], np.int32), np.array([2, 7], np.int32), (np.array([[1, 0], [2, 3]], np.int32),)
    )
    batch = Batch(np.arange(1, 6), np.array([0, 1, 4, 5, 6]), layout, np.array([1, 4]), np.array([4]), np.array([9]))
    padded = pad_batch(batch, Shape("prefill", 3, 4, 8), padded=True)
    assert padded.ids.tolist() == [1, 2, 0, 0, 3, 4, 5, 0, 0, 0, 0, 0]
    assert padded.positions.tolist() == [0, 1, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0]
    assert padded.last.tolist() == [1, 6]
    assert padded.unknown.tolist() == [6]
    assert padded.layout.query.tolist() == [2, 3, 1]
    assert padded.layout.tables[0].tolist() == [[1, 0], [2, 3], [0, 0]]
    assert (padded.layout.span, padded.layout.blocks, padded.layout.tokens) == (4, 8, 12)


def test_a_plan_without_rows_only_changes_slots(drive: Callable[..., Any]) -> None:
    driver = drive(settings={"in_flight": 2})
    driver.worker.launch(StepPlan(step=5, kind=Kind.IDLE, begin=(driver.begin(0, [1]),), rows=Rows()))
    assert driver.worker.finish().tokens == ()


def test_the_default_policy_counts_the_blocks_of_the_longest_row() -> None:
    policy = ShapePolicy(BatchLimits(4, 64, 16, block_size=4))
    shape = policy.measure("mixed", np.array([3, 1], np.int32), np.array([3, 9], np.int32))
    assert shape == policy.pad(shape) == Shape("mixed", 2, 3, 3)
