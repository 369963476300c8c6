"""Adapters are read while others are answered: over a fake worker that reads for as long as the test wants."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from lsv.adapters import registry
from lsv.adapters.orders import DropAdapter, ReadAdapter
from lsv.config import AdapterOptions
from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Order
from lsv.engine.parts.adapters import AdaptersPart
from lsv.engine.parts.sleep import SleepPart
from lsv.engine.parts.transfers import TransfersPart
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.outcome import AdapterRequests
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, CheckpointError, ModelNotFound, NotYet, Unavailable
from lsv_base.processes.orders import WorkerOrder
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.requests import make_spec


class ReadingExecutor(FakeExecutor):
    """Reads adapters until the test says that they are loaded, or why loading failed."""

    def __init__(self) -> None:
        super().__init__()
        self.there: bool | CheckpointError = False
        self.broken = ""
        """The adapter that is damaged; empty for any adapter."""
        self.asked: list[type[WorkerOrder]] = []

    def control(self, order: WorkerOrder) -> None:
        self.asked.append(type(order))
        if isinstance(order, ReadAdapter) and isinstance(self.there, CheckpointError) and self.broken in order.path:
            raise self.there
        if not self.there:
            raise NotYet("it is being read")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}')
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"")
    return tmp_path


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> ReadingExecutor:
    monkeypatch.setattr(registry, "_AGAIN", 0.0)
    return ReadingExecutor()


@pytest.fixture
def engine(folder: Path, executor: ReadingExecutor) -> Engine[str]:
    options = AdapterOptions(slots=1, max_rank=16, host=4, folder=str(folder))
    engine: Engine[str] = Engine(engine_config(adapters=options), executor, Fcfs(), parts=core_parts, now=FakeClock())
    engine.start(lambda *_: None)
    return engine


def ask(id: int, adapter: str = "", **params: object) -> Submit:
    params = {"temperature": 0.0, "max_tokens": 4, **params}
    spec = make_spec((1, 2, 3 + id), SamplingParams(**params), request_id=f"r{id}", adapter=adapter)
    return Submit(id=id, spec=spec)


def carry_out(engine: Engine[str], order: Order) -> Future[None] | None:
    return engine.orders.find(order).carry_out(order)


def ended(engine: Engine[str], most: int = 3000) -> dict[int, Update]:
    """The last updates of requests that end in so many steps."""
    found: dict[int, Update] = {}
    for _ in range(most):
        for update in engine.step().get("a", ()):
            if update.finish is not None:
                found[update.id] = update
        if not engine.has_work:
            break
        if engine.stalled:
            time.sleep(0.001)  # for the thread that reads
    return found


def test_a_request_waits_for_its_adapter_and_others_do_not(engine: Engine[str], executor: ReadingExecutor) -> None:
    for id, adapter in enumerate(("", "one", "one")):
        engine.submit("a", ask(id, adapter))
    assert engine.stats.adapters == AdapterRequests((), ("one",))
    while not executor.asked:
        engine.step()
    assert ended(engine, 20).keys() <= {0}
    assert engine.stats.running == 0
    assert engine.has_work
    assert set(executor.asked) == {ReadAdapter}
    executor.there = True
    assert {id: update.finish for id, update in ended(engine).items()} == dict.fromkeys((1, 2), FinishReason.LENGTH)
    assert [adapter.name for adapter in part_of(engine, AdaptersPart).registry.listed] == ["one"]


def test_who_waits_for_what_is_told(engine: Engine[str], executor: ReadingExecutor) -> None:
    executor.there = True
    for name in ("one", "two"):
        part_of(engine, AdaptersPart).registry.load(name, str(engine.config.adapters.folder) + f"/{name}")
    engine.submit("a", ask(0, "one"))
    engine.submit("a", ask(1, "two"))
    engine.step()
    assert engine.stats.adapters == AdapterRequests(("one",), ("two",))
    ended(engine)
    assert engine.stats.adapters == AdapterRequests((), ())


def test_what_refuses_an_adapter_ends_its_requests(engine: Engine[str], executor: ReadingExecutor) -> None:
    engine.submit("a", ask(0, "one"))
    engine.submit("a", ask(1, "two"))
    executor.there = CheckpointError("it is for another model")
    found = ended(engine)
    assert {found[id].error.message for id in (0, 1)} == {"it is for another model"}
    assert not part_of(engine, AdaptersPart).registry.listed


def test_the_start_fails_by_the_name_of_what_cannot_be_served(folder: Path, executor: ReadingExecutor) -> None:
    executor.there = CheckpointError("it is for another model")
    options = AdapterOptions(host=4, modules=(("x", str(folder / "one")),))
    engine: Engine[str] = Engine(engine_config(adapters=options), executor, Fcfs(), parts=core_parts, now=FakeClock())
    with pytest.raises(CheckpointError, match="lora_modules: x: it is for another model"):
        engine.start(lambda *_: None)


def test_a_search_waits_where_it_is_asked(engine: Engine[str], executor: ReadingExecutor) -> None:
    executor.there = True
    engine.submit("a", ask(0, "one", use_beam_search=True, n=2))
    assert ended(engine)[0].finish is FinishReason.LENGTH


def test_orders_are_answered_when_they_are_done(engine: Engine[str], executor: ReadingExecutor, folder: Path) -> None:
    order = LoadAdapter("x", str(folder / "one"))
    loading = carry_out(engine, order)
    engine.step()
    assert loading is not None
    assert not loading.done()
    with pytest.raises(BadRequest, match="is taken"):
        carry_out(engine, order)
    executor.there = True
    ended(engine)
    assert loading.result(0) is None
    assert carry_out(engine, UnloadAdapter("x")) is None
    assert not part_of(engine, AdaptersPart).registry.listed
    with pytest.raises(BadRequest, match=r"has no adapter_config\.json"):
        part_of(engine, AdaptersPart).registry.load("y", str(folder))


def test_a_refused_request_takes_nothing_from_the_next_one(
    engine: Engine[str], executor: ReadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(group: RequestGroup) -> None:
        raise BadRequest("nothing is fetched from there")

    with monkeypatch.context() as patch:
        patch.setattr(part_of(engine, TransfersPart), "open", refuse)  # its adapter is asked for already
        with pytest.raises(BadRequest, match="fetched"):
            engine.submit("a", ask(0, "one"))
    engine.submit("a", ask(1, "two"))
    executor.there, executor.broken = CheckpointError("it is for another model"), "one"
    assert ended(engine)[1].finish is FinishReason.LENGTH
    assert [adapter.name for adapter in part_of(engine, AdaptersPart).registry.listed] == ["two"]


def test_workers_drop_unreachable_adapters(engine: Engine[str], executor: ReadingExecutor, folder: Path) -> None:
    def drops() -> int:
        return executor.asked.count(DropAdapter)

    executor.there = True
    part_of(engine, AdaptersPart).registry.load("x", str(folder / "one"))
    part_of(engine, AdaptersPart).registry.load("x", str(folder / "two"), replace=True)
    assert drops() == 1
    engine.submit("a", ask(0, "x"))
    engine.step()
    part_of(engine, AdaptersPart).registry.unload("x")
    engine.step()
    assert drops() == 1  # the request goes on
    ended(engine)
    assert drops() == 2


def test_files_that_make_no_sense_end_their_requests_alone(
    engine: Engine[str], executor: ReadingExecutor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, mode: str) -> bytes:
        raise MemoryError("too large")

    monkeypatch.setattr(registry, "look", fail)
    executor.there = True
    engine.submit("a", ask(0, "one"))
    engine.submit("a", ask(1))
    found = ended(engine)
    assert found[0].error.message.endswith("the adapter can't be read: MemoryError: too large")
    assert found[1].finish is FinishReason.LENGTH
    with pytest.raises(ModelNotFound):
        engine.submit("a", ask(2, "x" * 300))


def test_what_is_read_while_the_engine_falls_asleep(
    folder: Path, executor: ReadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Engine[str] = Engine(
        engine_config(adapters=AdapterOptions(host=4), sleep_mode=True),
        executor,
        Fcfs(),
        parts=core_parts,
        now=FakeClock(),
    )
    engine.start(lambda *_: None)
    loading = carry_out(engine, LoadAdapter("x", str(folder / "one")))
    executor.there = True
    part_of(engine, SleepPart).sleep(1)
    engine.step()
    with pytest.raises(Unavailable, match="put to sleep"):
        loading.result(0)
    assert ReadAdapter not in executor.asked
    assert not engine.has_work
