"""How a worker starts: what it refuses, reports and warms up; and the inline executor around it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv.engine.executor import Reset
from lsv.offers import AttentionOffer
from lsv.scheduler.plan import Kind, Rows, StepPlan
from lsv_base.errors import ConfigError, EngineDied
from lsv_base.processes.orders import WorkerOrder
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.devices.shapes import Shape
from lsv_runtime.worker.executor import InlineExecutor

Checkpoints = Callable[..., Path]
MakeWorker = Callable[..., Any]


def no_report(stage: str, done: int, total: int) -> None:
    pass


@pytest.mark.row("F-874", "F-496")
def test_progress_names_stages_and_ends_complete(checkpoints: Checkpoints, make_worker: MakeWorker) -> None:
    reports: list[tuple[str, int, int]] = []
    make_worker(checkpoints("llama"), "llama").start(lambda *report: reports.append(report))
    weights = [(done, total) for stage, done, total in reports if stage == "weights"]
    assert weights[-1][0] == weights[-1][1] > 10
    assert [done for done, _ in weights] == sorted(done for done, _ in weights)
    assert reports[-1] == ("warm-up", 1, 1)


@pytest.mark.row("F-496")
def test_the_budget_is_asked_for_as_if_the_weights_were_there(
    checkpoints: Checkpoints, make_worker: MakeWorker, device: Any
) -> None:
    fit = make_worker(checkpoints("llama"), "llama").start(no_report)
    weights = device.seen.used - (1 << 20)
    assert device.seen.free == (1 << 29) - weights
    assert 0.9 * fit.weight_bytes < weights <= fit.weight_bytes  # rope tables come when the model is filled
    page = 2 * 4 * 2 * 2 * 16 * 4  # layers, block, K and V, KV heads, head dim, float32
    assert fit.num_blocks == (1 << 20) // page - 1
    assert fit.kv_bytes == (fit.num_blocks + 1) * page
    assert fit.vocab_size == 320


@pytest.mark.row("F-383")
def test_memory_is_measured_with_the_kernels_that_serve(
    checkpoints: Checkpoints, make_worker: MakeWorker, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a cache of the null page, where plans and pages are on the device as they are later."""
    pages: list[int] = []
    attend = DenseAttention.attend

    def watch(self: Any, q: Any, k: Any, v: Any, layer: Any, cache: Any, plan: Any) -> Any:
        pages.append(len(cache.k[layer.index]))
        assert self.device is device
        return attend(self, q, k, v, layer, cache, plan)

    def measure(run: Callable[[], object]) -> int:
        run()
        assert pages == [1, 1]
        return 1 << 10

    monkeypatch.setattr(DenseAttention, "attend", watch)
    monkeypatch.setattr(device, "measure_peak", measure, raising=False)
    fit = make_worker(checkpoints("llama"), "llama").start(no_report)
    assert set(pages[2:]) == {fit.num_blocks + 1}
    assert device.seen.used >= fit.weight_bytes + (1 << 10)


@pytest.mark.row("F-490")
def test_warmed_up_shapes_run_compiled(drive: Callable[..., Any], device: Any) -> None:
    driver = drive()
    shape = Shape("decode", 2, 1, 3)
    assert device.compiled_runs == [shape]
    begin = [driver.begin(0, [1] * 8), driver.begin(1, [2] * 9)]
    driver.run([(0, 0, 8, True), (1, 0, 9, True)], begin)
    assert device.compiled_runs == [shape]
    driver.run([(0, 8, 1, True), (1, 9, 1, True)])
    assert device.compiled_runs == [shape, shape]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float12"}, "dtype float12 is unknown: choose one of float32"),
        ({"kv_dtype": "fp7"}, "kv_cache_dtype fp7 is unknown"),
        ({"num_blocks": 3}, r"estimated maximum model length is 12\."),
    ],
)
def test_what_cannot_be_served_is_refused(
    checkpoints: Checkpoints, make_worker: MakeWorker, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_worker(checkpoints("llama"), "llama", **changes).start(no_report)


def test_a_layer_the_backend_cannot_serve_is_refused_with_its_reason(
    checkpoints: Checkpoints, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DenseAttention, "supports", lambda self, layer: "heads of 16 are too small")
    with pytest.raises(ConfigError, match="dense can't serve layer 0 of llama: heads of 16 are too small"):
        make_worker(checkpoints("llama"), "llama").start(no_report)


@pytest.fixture
def executor(drive: Callable[..., Any], checkpoints: Checkpoints, make_worker: MakeWorker) -> InlineExecutor:
    worker = make_worker(checkpoints("llama"), "llama")
    inline = InlineExecutor(worker._catalog)
    inline.start(worker._config, no_report)
    return inline


class _Narrow(DenseAttention):
    def supports(self, layer: Any) -> str | None:
        return f"heads of {layer.head_dim} are too small"


class _Broken(DenseAttention):
    def __init__(self) -> None:
        raise ConfigError("its library does not load")


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (_Narrow, "narrow can't serve layer 0 of llama: heads of 16 are too small"),
        (_Broken, "its library does not load"),
    ],
)
def test_a_backend_that_was_not_asked_for_gives_way_to_the_next(
    checkpoints: Checkpoints, make_worker: MakeWorker, first: type, why: str
) -> None:
    worker = make_worker(checkpoints("llama"), "llama", attention="narrow", attention_next=("dense",))
    worker._catalog.offer(AttentionOffer("narrow", f"{__name__}:{first.__name__}", (4,)), first)
    fit = worker.start(no_report)
    (reason,) = (reason for reason in fit.reasons if reason.name == "attention")
    assert reason.value == "dense"
    assert why in reason.why
    assert (fit.ops[0].op, fit.ops[0].implementation) == (
        "attention_backend",
        "lsv_runtime.attention.dense:DenseAttention",
    )
    assert (fit.ops[0].count, fit.ops[0].why) == (2, reason.why)


def test_a_backend_that_was_asked_for_is_refused(checkpoints: Checkpoints, make_worker: MakeWorker) -> None:
    worker = make_worker(checkpoints("llama"), "llama", attention="narrow")
    worker._catalog.offer(AttentionOffer("narrow", "narrow", (4,)), _Narrow)
    with pytest.raises(ConfigError, match="heads of 16 are too small; choose another with --attention-backend"):
        worker.start(no_report)


class Polish(WorkerOrder, frozen=True):
    """An order that workers do not know."""


def test_the_inline_executor_runs_plans(executor: InlineExecutor, device: Any) -> None:
    executor.submit(StepPlan(step=3, kind=Kind.IDLE))
    assert executor.collect(1.0).step == 3
    executor.control(Reset())
    with pytest.raises(ConfigError, match="unknown order 'polish': workers know reset, release_memory"):
        executor.control(Polish())
    executor.stop()
    assert device.closed


def test_a_broken_step_ends_the_engine_with_its_cause(
    executor: InlineExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    plan = StepPlan(step=8, kind=Kind.DECODE, rows=Rows((99,), (0,), (1,), (0,), (True,)))
    with caplog.at_level(logging.ERROR), pytest.raises(EngineDied, match=r"step 8 .* failed: KeyError") as caught:
        executor.submit(plan)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "step 8" in caplog.text
    assert "Traceback" in caplog.text
