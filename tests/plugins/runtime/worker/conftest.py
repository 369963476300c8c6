"""Slots for sampler tests; a worker on a bare platform with the reference attention, and plans by hand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import EngineConfig, Fit, OptionValue
from lsv.kv.spec import KVGroup
from lsv.offers import AttentionOffer, ModelOffer, PlatformOffer, load_object
from lsv.platform import Platform
from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams
from lsv.scheduler.plan import Begin, Encode, Grown, Kind, Rows, StepPlan, StepResult
from lsv_runtime.devices.device import Budget, Device, Fill, Memory, StepFn
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy
from lsv_runtime.worker.slots import Slot
from lsv_runtime.worker.worker import Worker
from lsv_testing.tiny import tiny

BLOCK = 4
FAMILIES = ("llama", "mistral", "qwen2")


@pytest.fixture
def make_slot() -> Callable[..., Slot]:
    """A slot with ``prompt`` and ``output`` tokens; other keywords are sampling parameters."""

    def make(
        prompt: Sequence[int] = (1, 2, 3),
        output: Sequence[int] = (),
        *,
        vocabulary: int = 50_000,
        engine_seed: int = 0,
        stop_ids: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
        **params: Any,
    ) -> Slot:
        params.setdefault("max_tokens", None)
        begin = Begin(
            slot=0,
            ids=(*prompt, *output),
            prompt=len(prompt),
            params=SamplingParams(**params),
            seed=engine_seed,
            stop_ids=stop_ids,
            bad_words=bad_words,
        )
        return Slot(begin, vocabulary)

    return make


class WarmShapes(ShapePolicy):
    """Two decoding rows are warmed up."""

    def warmup(self) -> Iterator[Shape]:
        yield Shape("decode", 2, 1, 3)


class BareDevice(Device):
    """Ordinary memory with a fixed budget; remembers which compiled shapes ran."""

    def __init__(self, kv_bytes: int) -> None:
        self.info = DeviceInfo(0, "bare", 1 << 30)
        self.torch_device = torch.device("cpu")
        self.kv_bytes = kv_bytes
        self.compiled_runs: list[Shape] = []
        self.seen: Memory | None = None
        self.closed = False

    def memory(self) -> Memory:
        return Memory(1 << 30, 1 << 29, 1 << 20)

    def budget(self, memory: Memory, share: float | None) -> Budget:
        self.seen = memory
        return Budget(self.kv_bytes, why="the test's budget")

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        return WarmShapes(limits)

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        def run() -> Any:
            self.compiled_runs.append(shape)
            return step()

        return run

    def close(self) -> None:
        self.closed = True


class BarePlatform(Platform):
    name = "bare"
    attention = ("dense",)

    def __init__(self, device: BareDevice) -> None:
        self.device = device

    def devices(self) -> Sequence[DeviceInfo]:
        return (self.device.info,)

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        return Capabilities(dtypes=("float32",))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        return self.device


class BareCatalog:
    """What a worker asks of the catalog, over three kinds of offers."""

    def __init__(self, device: BareDevice) -> None:
        self.device = device
        self._made: dict[str, Any] = {"bare": lambda: BarePlatform(device)}
        self._offers: tuple[Any, ...] = (
            PlatformOffer("bare", "bare", lambda: (device.info,)),
            AttentionOffer("dense", "lsv_runtime.attention.dense:DenseAttention", (BLOCK,)),
            *(ModelOffer(name, (), f"lsv_models.{name}:{name.title()}") for name in FAMILIES),
        )

    def offer(self, offer: Any, made: Any) -> None:
        """One offer more, and what it is loaded as."""
        self._offers, self._made[offer.load or offer.worker] = (*self._offers, offer), made

    def offers(self, kind: type) -> list[Any]:
        return [offer for offer in self._offers if isinstance(offer, kind)]

    def find(self, kind: type, name: str) -> Any:
        return next(offer for offer in self.offers(kind) if offer.name == name)

    def provider(self, offer: Any) -> str:
        return "bare"

    def is_own(self, offer: Any) -> bool:
        return True

    def load(self, offer: Any, part: str = "load") -> Any:
        name = getattr(offer, part)
        return self._made.get(name) or load_object(name)


class Driver:
    """A worker and the plans one writes for it by hand; gives every row the blocks it needs."""

    def __init__(self, worker: Worker, fit: Fit) -> None:
        self.worker = worker
        self.fit = fit
        self.groups = [KVGroup(**group) for group in fit.groups]
        self._free = iter(range(1, fit.num_blocks + 1))
        self._steps = 0
        self.tables: dict[tuple[int, int], list[int]] = {}

    def begin(
        self,
        slot: int,
        ids: Sequence[int],
        prompt: int | None = None,
        *,
        seed: int = 0,
        pooling: PoolingParams | None = None,
        media: tuple[Media, ...] = (),
        positions: Positions | None = None,
        **params: Any,
    ) -> Begin:
        sampling = None if pooling else SamplingParams(**{"temperature": 0.0, "max_tokens": None, **params})
        prompt = len(ids) if prompt is None else prompt
        for group in self.groups:
            self.tables[slot, group.index] = []
        return Begin(slot, tuple(ids), prompt, sampling, pooling, seed, stop_ids=(7,), media=media, positions=positions)

    def run(
        self,
        rows: Sequence[tuple[int, int, int, bool]],
        begin: Sequence[Begin] = (),
        end: Sequence[int] = (),
        shared: Sequence[Grown] = (),
        kind: Kind | None = None,
        encode: Sequence[Encode] = (),
        forget: Sequence[bytes] = (),
    ) -> StepResult:
        """Launch and finish a step, with nothing else under way."""
        plan = self.launch(rows, begin, end, shared, kind, encode, forget)
        result = self.worker.finish()
        assert result.step == plan.step
        assert result.kept == plan.rows.count
        return result

    def launch(
        self,
        rows: Sequence[tuple[int, int, int, bool]],
        begin: Sequence[Begin] = (),
        end: Sequence[int] = (),
        shared: Sequence[Grown] = (),
        kind: Kind | None = None,
        encode: Sequence[Encode] = (),
        forget: Sequence[bytes] = (),
    ) -> StepPlan:
        """Rows are (slot, start, count, wants_logits); ``shared`` are blocks a slot takes over first."""
        for grown in shared:
            self.tables[grown.slot, grown.group] += grown.blocks
        blocks = [*shared, *(grown for row in rows for grown in self._grow(row[0], row[1] + row[2]))]
        slot, start, count, wants = zip(*rows, strict=True) if rows else ((), (), (), ())
        kind = kind or (Kind.IDLE if not rows else Kind.DECODE if set(count) == {1} else Kind.MIXED)
        self._steps += 1
        plan = StepPlan(
            step=self._steps,
            kind=kind,
            begin=tuple(begin),
            end=tuple(end),
            blocks=tuple(blocks),
            encode=tuple(encode),
            forget=tuple(forget),
            rows=Rows(slot, start, count, (0,) * len(rows), wants),
        )
        self.worker.launch(plan)
        return plan

    def _grow(self, slot: int, context: int) -> Iterator[Grown]:
        for group in self.groups:
            table = self.tables[slot, group.index]
            more = -(-context // BLOCK) - len(table)
            if more > 0:
                table += [next(self._free) for _ in range(more)]
                yield Grown(slot, group.index, tuple(table[-more:]))

    def generate(self, begin: Begin, tokens: int, chunk: int = 1000, encode: Sequence[Encode] = ()) -> list[int]:
        """One request alone: its ids in chunks of ``chunk``, then token by token; the new tokens."""
        drawn: list[int] = []
        entering, start, length = [begin], 0, len(begin.ids)
        while len(drawn) < tokens:
            count = min(chunk, length - start)
            result = self.run([(begin.slot, start, count, start + count == length)], entering, encode=encode)
            assert not result.failed
            entering, encode, start = [], (), start + count
            drawn += result.tokens[0]
            length = len(begin.ids) + len(drawn)
        return drawn


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tiny checkpoints, each written once."""
    made: dict[str, Path] = {}

    def make(family: str, **shape: Any) -> Path:
        key = f"{family}{sorted(shape.items())}"
        if key not in made:
            made[key] = tiny(family, tmp_path_factory.mktemp("checkpoint"), **shape)
        return made[key]

    return make


def make_config(model: Path, offer: str, **changes: Any) -> EngineConfig:
    settings = {
        "served_names": (offer,), "tokenizer": str(model), "architecture": offer, "platform": "bare",
        "attention": "dense", "dtype": "float32", "block_size": BLOCK, "max_model_len": 128,
        "max_num_batched_tokens": 64, "max_num_seqs": 8, **changes,
    }  # fmt: skip
    return EngineConfig(model=str(model), model_offer=offer, **settings)


@pytest.fixture
def device() -> BareDevice:
    return BareDevice(kv_bytes=1 << 20)


@pytest.fixture
def make_worker(device: BareDevice) -> Callable[..., Worker]:
    def make(model: Path, offer: str, **changes: Any) -> Worker:
        return Worker(make_config(model, offer, **changes), BareCatalog(device))  # type: ignore[arg-type]

    return make


@pytest.fixture
def drive(checkpoints: Callable[..., Path], make_worker: Callable[..., Worker]) -> Callable[..., Driver]:
    """A started worker for a tiny model of a family, to be driven by hand; ``settings`` change its configuration."""

    def start(family: str = "llama", settings: Mapping[str, Any] | None = None, **shape: Any) -> Driver:
        worker = make_worker(checkpoints(family, **shape), family, **settings or {})
        return Driver(worker, worker.start(lambda stage, done, total: None))

    return start
