"""The seam to hardware: a platform declares, core decides. This module imports no torch at run time."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lsv.capabilities import Capabilities, DeviceInfo, Padding
from lsv.config import OptionValue
from lsv.errors import ConfigError, suggestion

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from lsv.config import EngineConfig
    from lsv.ops import Bindable

    Int32s = npt.NDArray[np.int32]

StepFn = Callable[[], Any]
"""Computes a step over buffers that keep their places in memory."""

Fill = Callable[[], None]
"""Writes values into the buffers of a step."""


class Memory(msgspec.Struct, frozen=True):
    """Bytes of one device."""

    total: int
    free: int
    used: int
    """What this process holds."""


class Budget(msgspec.Struct, frozen=True):
    """What of a device's memory the KV cache may take once the weights are in place."""

    kv: int
    """Bytes."""
    why: str = ""


class BatchLimits(msgspec.Struct, frozen=True):
    """The largest step."""

    max_rows: int
    max_tokens: int
    max_blocks: int
    """Cache blocks that the longest request needs."""
    block_size: int = 16
    """Tokens in a block."""
    num_blocks: int = 0
    """Blocks of the whole cache."""
    contexts: bool = True
    """Whether a prompt's new tokens may have others before them: those of its earlier chunks, or of a cached prefix."""
    drafts: int = 0
    """Most drafts of a row, which are computed behind a context of any length."""
    prompts_captured: bool = False
    """Whether attention lets steps with prompts be captured, see ``lsv.attention.AttentionBackend``."""

    @property
    def max_len(self) -> int:
        """Tokens of the longest request, rounded up to blocks."""
        return self.max_blocks * self.block_size


class Shape(msgspec.Struct, frozen=True):
    """The form of a step."""

    kind: str
    """As in the plan, or a name of the policy's own."""
    rows: int
    """Requests."""
    query: int
    """Tokens of each, at most."""
    blocks: int
    """What it counts is the policy's own choice, see ``ShapePolicy.measure``."""
    tokens: int = 0
    """Tokens of all rows together, where a flat step is padded to as many; padding rows have those that are left, and
    perhaps none. 0 where each of them has one.
    """

    @property
    def size(self) -> int:
        """Tokens that the layers are given, those that fill the step up included."""
        return self.tokens or self.rows * self.query


class Group(msgspec.Struct, frozen=True):
    """Ranks that talk to each other along one axis."""

    axis: str
    """tp, pp, ep, dp or world; hosts, where it is the processors of these that talk and not their devices."""
    ranks: tuple[int, ...]
    """All of the group, in order."""
    rank: int
    """This process's place among them."""
    address: str
    """Where they meet: the absolute path of a file in a folder of this user's alone; ``host:port``, where the first of
    them keeps a store; or ``tcp://host:port``, where another process does."""

    @property
    def size(self) -> int:
        return len(self.ranks)


class ShapePolicy:
    """What steps are padded to and which shapes are warmed up. The default pads nothing.

    Where ``padding`` is given, the planner keeps steps of prompts inside it.
    """

    padding: Padding | None = None

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits

    def measure(self, kind: str, query: Int32s, context: Int32s) -> Shape:
        """The shape of a step whose rows have so many new tokens and, with them, so many in all.

        The default counts the blocks of the longest row.
        """
        blocks = -(-int(context.max()) // self.limits.block_size)
        return Shape(kind, len(query), int(query.max()), blocks)

    def pad(self, shape: Shape) -> Shape:
        """The shape a step runs in: one that is warmed up, or where none is large enough, ``shape`` itself."""
        return shape

    def widen(self, shape: Shape, size: int) -> Shape:
        """The shape of just so many tokens that is warmed up and holds ``shape``; where there is none, ``shape``."""
        return shape

    def warmup(self) -> Iterator[Shape]:
        """Shapes to run before the first request; each is compiled and run before the next one is asked for.

        A shape may come twice: what ``Device.compile`` made last is kept.
        """
        return iter(())

    def prepares(self, shape: Shape) -> bool:
        """Whether steps in this shape, of a kind that is warmed up, are meant to be: one that was not is told of."""
        return True

    def describe(self, shape: Shape) -> str:
        """A shape as the platform's users know it, for the log."""
        return f"({shape.kind}, {shape.rows}, {shape.tokens or shape.query}, {shape.blocks})"

    def expected(self) -> int:
        """How many shapes ``warmup`` yields, for showing progress; 0 when that is not known."""
        return 0


class Traffic(msgspec.Struct, frozen=True):
    """One request of a sample."""

    prompt: int
    """Tokens of its prompt."""
    output: int
    """Tokens of its answer."""


class Advice(msgspec.Struct, frozen=True):
    """A table of findings, and the settings that would follow them."""

    title: str
    rows: tuple[tuple[str, str, str], ...]
    """Name, value and why."""
    settings: Mapping[str, OptionValue] = {}


class Communicator(abc.ABC):
    """Collectives of one group. Tensors stay on the device; all_reduce adds in rank order where the backend can."""

    group: Group
    ops: Sequence[Bindable] = ()
    """What of its work a kernel may take over."""

    @abc.abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x``, in its shape and dtype."""

    @abc.abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' ``x`` in rank order, joined along ``dim``, which becomes as many times as long."""

    @abc.abstractmethod
    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The ``x`` of rank ``source``; the other ranks' have its shape and dtype."""

    def start_broadcast(self, x: torch.Tensor) -> Callable[[], object]:
        """Begin to hand the first rank's ``x`` to the others, which ``broadcast`` meanwhile; call what is returned to
        wait until they have it. ``x`` may change at once. The default waits here.
        """
        self.broadcast(x)
        return lambda: None

    @abc.abstractmethod
    def self_test(self) -> None:
        """Run every collective on known values; raises ``ConfigError`` naming the one that lied."""

    def close(self) -> None:
        """Leave the group."""


class Event(Protocol):
    """A mark in the work given to a device."""

    def synchronize(self) -> None:
        """Wait until the device is past it."""
        ...


class Fetcher(Protocol):
    """Copies from pinned memory of the host, made beside a device's work and in an order of their own. Where steps can
    be captured, they are captured with the step that asks for them.
    """

    def fetch(self, place: int, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy into the first of each pair what the second holds, once the device is past all work given to it so far.
        ``place`` is the number by which these copies are expected.
        """
        ...

    def expect(self, place: int) -> None:
        """Have the work that is given from here on wait for what was fetched last for ``place``."""
        ...


class Device(abc.ABC):
    """One opened device, in the worker process only."""

    pinned: bool = False
    """Whether its copies from and to pinned host memory run beside its work."""
    largest_allocation: int | None = None
    """The most bytes it gives at a time; None where that is all that is free."""
    compiles_late: bool = False
    """Whether kernels may be compiled when they are launched for the first time, and steps wait for that."""
    asynchronous: bool = False
    """Whether its work runs beside the host, which waits for it where it reads what came of it."""
    shares_host: bool = False
    """Whether its memory is the host's."""
    info: DeviceInfo
    torch_device: torch.device

    @property
    def captures(self) -> bool:
        """Whether ``compile`` makes graphs, which hold memory of their own: room for it is kept beside the cache."""
        return False

    @abc.abstractmethod
    def memory(self) -> Memory: ...

    @abc.abstractmethod
    def budget(self, memory: Memory, share: float | None) -> Budget:
        """The platform's own rule for what is left after the weights; ``share`` is what the user asked for."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def release_cache(self) -> None:
        """Give cached memory back to the system."""

    def communicator(self, group: Group) -> Communicator | None:
        """Collectives for a group; None where a group of one needs none."""
        if group.size > 1:
            raise ConfigError(f"{type(self).__name__} can't form a {group.axis} group of {group.size}: use size 1")
        return None

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        return ShapePolicy(limits)

    def compile_parts(self, model: torch.nn.Module) -> None:
        """Replace parts of a filled ``lsv.nn.model.Model`` by others that can be compiled, on a device that compiles
        these and not whole steps. Comes before the first ``compile``, unless steps are to run op by op.
        """

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        """A faster form of ``step`` for one shape: a graph, a compiled function, or ``step`` itself.

        ``step`` reads and writes tensors that stay where they are, and may be called here as often as needed. Each of
        ``fillings`` writes other values into them, so that what was made can be compared with the step. ``eager`` asks
        for no more than the device can't do without.
        """
        return step

    def event(self) -> Event | None:
        """A mark behind all work given to the device so far; None where work is done when the call returns."""
        return None

    def observe(self, kind: str, start: Sequence[int], count: Sequence[int]) -> AbstractContextManager[object]:
        """A context for giving a step to the device, for a platform that watches its steps. The default does nothing.

        ``kind`` is the plan's. Row by row, ``count`` tokens are computed after ``start`` others.
        """
        return nullcontext()

    def fetcher(self, places: int) -> Fetcher | None:
        """Copies beside its work, into so many places; None where it makes none."""
        return None

    def is_fatal(self, error: Exception) -> bool:
        """Whether the device is of no use any more after ``error`` in a step; if not, the next step is run on it.

        The default waits for its work: a device that is lost fails again.
        """
        try:
            self.synchronize()
        except Exception:
            return True
        return False

    def record_range(self, *, start: bool) -> None:
        """Have the vendor's profiler, under which the process runs, begin to record or stop.

        Raises ``ConfigError`` where it can't be told.
        """
        raise ConfigError("this platform's profiler can't record on demand: use the profiler torch")

    def measure_peak(self, run: Callable[[], object]) -> int:
        """Bytes that ``run`` takes at its peak beyond what is held before; 0 where that is not measured."""
        return 0

    def close(self) -> None:
        """Release the device."""


class Platform(abc.ABC):
    """A kind of hardware. Constructed in any process; only ``open`` may import torch."""

    api: int = 1
    """The version of this seam."""
    name: str
    attention: Sequence[str] = ()
    """Attention offers by preference."""

    @abc.abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices present, without initialising any."""

    def emulated_devices(self, options: Mapping[str, OptionValue]) -> Sequence[DeviceInfo]:
        """The devices that an emulation has with these ``options``, which are as in ``open``.

        Raises ``ConfigError`` for an option that names no device that can be emulated.
        """
        return self.devices()

    @abc.abstractmethod
    def capabilities(self, info: DeviceInfo) -> Capabilities: ...

    def environment(self, options: Mapping[str, OptionValue]) -> Mapping[str, str]:
        """Variables that the hardware's libraries read once, when they are loaded, be it by ``import torch``.

        They are set in the engine's process before anything imports torch there, and its workers inherit them. What the
        user has set stays. ``options`` as in ``open``.
        """
        return {}

    @abc.abstractmethod
    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Take a device into use. ``options`` are all plugins' settings by full name."""

    def open_rank(self, rank: int, ranks: int, options: Mapping[str, OptionValue], first: int = 0) -> Device:
        """The device of one of ``ranks`` processes on this machine: those of a model that is cut, and its replicas.

        Ranks take consecutive devices from ``first`` on, unless a platform has one device that they share.
        """
        return self.open(first + rank, options)

    def advise(self, config: EngineConfig, traffic: Sequence[Traffic]) -> Advice | None:
        """What ``lsv plan`` says of this platform beside memory; ``traffic`` is a sample of requests, or empty."""
        return None

    def references(self, info: DeviceInfo) -> Mapping[str, float]:
        """What a sound device of this kind attains, by the names ``lsv doctor --evaluate`` gives its measurements."""
        return {}


def check_platform_class(cls: type[Platform] | type[Device]) -> list[str]:
    """What is wrong with a platform's or device's class, one sentence each: methods that are missing, and public ones
    that the seam does not know (most often a misspelt one, which core would never call).
    """
    base = Platform if issubclass(cls, Platform) else Device
    known = {name for name in (*dir(base), *base.__annotations__) if not name.startswith("_")}
    missing = [f"{cls.__name__} lacks {name}" for name in sorted(cls.__abstractmethods__)]
    unknown = [
        f"{cls.__name__}.{name} is not part of {base.__name__}{suggestion(name, sorted(known))} "
        "(names of a platform's own start with _)"
        for name in sorted(vars(cls))
        if not name.startswith("_") and name not in known and callable(getattr(cls, name))
    ]
    return missing + unknown
