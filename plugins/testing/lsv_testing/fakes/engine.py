"""An engine over a fake worker: in this process, or in one of its own, where it comes from a plugin made for the test.

Options of the configuration make it misbehave: ``fake.delay`` seconds a step, and ``fake.token_delay`` a token of it;
``fake.load_delay`` seconds a part of the weights, of which there are ``fake.load_parts``; ``fake.die`` a step in which
the worker dies, ``fake.crash`` one with a bug, ``fake.fail`` one whose first row fails, ``fake.hang`` one that never
ends; ``fake.lose`` 1 for a worker that is lost while nothing is in flight; ``fake.start_error`` a text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import EngineConfig, Fit, OptionValue
from lsv.engine.engine import Engine
from lsv.engine.executor import Executor, ReportProgress
from lsv.engine.parts.made import make_parts
from lsv.engine.parts.part import Host, Part
from lsv.hooks import hookimpl
from lsv.kv.spec import KVGroup
from lsv.offers import ExecutorOffer, PlacerOffer, PlatformOffer
from lsv.platform import Platform
from lsv.plugins import builtin
from lsv.plugins.catalog import Catalog
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.errors import ConfigError, EngineDied
from lsv_base.processes.orders import WorkerOrder
from lsv_runtime.devices.device import Device
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.faults import FaultInjector, Faults
from lsv_testing.fakes.worker import Draft, FakeWorker

api = 2

P = TypeVar("P", bound=Part)
_FOREVER = 3600.0
_GROUP = KVGroup(0, "full", (0,), 1)


@hookimpl
def lsv_executors() -> Iterable[ExecutorOffer]:
    yield ExecutorOffer("fake", "lsv_testing.fakes.engine:FakeExecutor")


@hookimpl
def lsv_placers() -> Iterable[PlacerOffer]:
    yield PlacerOffer("fake", "lsv_testing.fakes.placer:FakePlacer")


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    yield PlatformOffer("fake", "lsv_testing.fakes.engine:FakePlatform", lambda: ())


def engine_config(**changes: Any) -> EngineConfig:
    """A configuration that needs no model, for the executor ``fake``."""
    known: dict[str, Any] = {
        "model": "fake",
        "served_names": ("fake",),
        "tokenizer": "fake",
        "architecture": "Fake",
        "model_offer": "fake",
        "platform": "fake",
        "attention": "fake",
        "dtype": "float32",
        "block_size": 4,
        "num_blocks": 512,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "executor": "fake",
        "plugins": ("core", "fake_engine"),
    }
    return EngineConfig(**(known | changes))


def core_parts(engine: Host) -> list[Part]:
    """The parts that core has of its own, for an ``Engine``."""
    return make_parts(catalog_of(builtin), engine)


def part_of(engine: Engine[Any], kind: type[P]) -> P:
    """The part of an engine that is of this type."""
    return next(part for part in engine.parts.all if isinstance(part, kind))


def install_plugin(folder: Path) -> None:
    """Make ``folder`` hold an installed distribution with this module as the plugin ``fake_engine``."""
    info = folder / "lsv_fake_engine-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lsv-fake-engine\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[lsv]\nfake_engine = lsv_testing.fakes.engine\n")


class FakePlatform(Platform):
    """No device: the executor computes nothing."""

    name = "fake"

    def devices(self) -> Sequence[DeviceInfo]:
        return ()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        raise NotImplementedError

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        raise NotImplementedError


class FakeExecutor:
    """A ``FakeWorker`` of the configured size, with the configured faults."""

    depth = 1
    draft: Draft = staticmethod(lambda slot, most: ())

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._inner: Executor | None = None
        self._options: Mapping[str, OptionValue] = {}
        self._step = -1
        self._tokens = 0

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        self._options = config.options
        parts = int(self._number("load_parts")) or 3
        for done in range(parts):
            progress("weights", done, parts)
            time.sleep(self._number("load_delay"))
        if "fake.start_error" in config.options:
            raise ConfigError(str(config.options["fake.start_error"]))
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            depth=self.depth,
            drafts=0 if config.drafts is None else config.drafts.most,
        )
        assert config.num_blocks is not None
        worker = FakeWorker(limits, (_GROUP,), config.num_blocks, config.block_size, self.draft)
        self._inner = FaultInjector(worker, self._faults())
        fit = self._inner.start(config, progress)
        return msgspec.structs.replace(fit, groups=(msgspec.to_builtins(_GROUP),))

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        assert self._inner is not None
        if plan.step == self._options.get("fake.crash"):
            raise RuntimeError("a bug in the executor")
        self._step, self._tokens = plan.step, plan.tokens
        self._inner.submit(plan, masks)

    def collect(self, timeout: float) -> StepResult:
        assert self._inner is not None
        time.sleep(self._number("delay") + self._number("token_delay") * self._tokens)
        if self._step == self._options.get("fake.hang"):
            time.sleep(_FOREVER)
        return self._inner.collect(timeout)

    def check(self) -> None:
        assert self._inner is not None
        if self._options.get("fake.lose"):
            raise EngineDied("a worker is gone")
        self._inner.check()

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        assert self._inner is not None
        return self._inner.control(order)

    def stop(self) -> None:
        if self._inner is not None:
            self._inner.stop()

    def _number(self, option: str) -> float:
        value = self._options.get(f"fake.{option}", 0.0)
        return float(value) if isinstance(value, int | float) else 0.0

    def _faults(self) -> Faults:
        die, fail = self._options.get("fake.die"), self._options.get("fake.fail")
        return Faults(
            die=frozenset({die}) if isinstance(die, int) else frozenset(),
            fail={fail: {0: "non-finite logits"}} if isinstance(fail, int) else {},
        )
