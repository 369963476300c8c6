"""The seam to hardware: a platform declares, core decides. This module imports no torch at run time."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.errors import ConfigError, PluginError
from lsv.offers import PlatformOffer
from lsv.spelling import suggestion

if TYPE_CHECKING:
    import torch

    from lsv.catalog import Catalog

StepFn = Callable[..., Any]


class Memory(msgspec.Struct, frozen=True):
    """Bytes of one device. ``used`` is what this process holds."""

    total: int
    free: int
    used: int


class Budget(msgspec.Struct, frozen=True):
    """How a device's memory is to be split once the weights are in place, in bytes, and why."""

    kv: int
    graphs: int = 0
    spare: int = 0
    why: str = ""


class BatchLimits(msgspec.Struct, frozen=True):
    max_rows: int
    max_tokens: int
    max_blocks: int


class Shape(msgspec.Struct, frozen=True):
    """The padded form of a step: ``rows`` requests of ``query`` tokens over ``blocks`` cache blocks."""

    kind: str
    rows: int
    query: int
    blocks: int


class Group(msgspec.Struct, frozen=True):
    """Ranks that talk to each other along one axis (tp, pp, ep, dp, world)."""

    axis: str
    ranks: tuple[int, ...]
    rank: int
    address: str

    @property
    def size(self) -> int:
        return len(self.ranks)


class ShapePolicy:
    """What steps are padded to and which shapes are warmed up. The default pads nothing."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits

    def pad(self, shape: Shape) -> Shape:
        return shape

    def warmup(self) -> Iterator[Shape]:
        return iter(())

    def largest(self) -> Shape:
        return Shape("mixed", self.limits.max_rows, self.limits.max_tokens, self.limits.max_blocks)


class Communicator(abc.ABC):
    """Collectives of one group. Tensors stay on the device; all_reduce adds in rank order where the backend can."""

    group: Group

    @abc.abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...

    @abc.abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor: ...

    @abc.abstractmethod
    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor: ...

    @abc.abstractmethod
    def self_test(self) -> None:
        """Run every collective on known values; raises ``ConfigError`` naming the one that lied."""

    def close(self) -> None:
        """Leave the group."""


class Device(abc.ABC):
    """One opened device, in the worker process only."""

    info: DeviceInfo
    torch_device: torch.device

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

    def compile(self, step: StepFn, shape: Shape) -> StepFn:
        """A faster form of ``step`` for one shape: a graph, a compiled function, or ``step`` itself."""
        return step

    def close(self) -> None:
        """Release the device."""


class Platform(abc.ABC):
    """A kind of hardware. Constructed in any process; only ``open`` may import torch.

    ``attention`` lists attention offers by preference. ``api`` is the number of the seam's version.
    """

    api: int = 1
    name: str
    attention: Sequence[str] = ()

    @abc.abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices present, without initialising any."""

    @abc.abstractmethod
    def capabilities(self, info: DeviceInfo) -> Capabilities: ...

    @abc.abstractmethod
    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Take a device into use. ``options`` are this plugin's settings by full name."""


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


def load_platform(name: str, catalog: Catalog) -> Platform:
    """The platform an offer names. Raises ``PluginError`` when its class does not keep to the seam."""
    offer = catalog.find(PlatformOffer, name)
    make = catalog.load(offer)
    problems = check_platform_class(make) if isinstance(make, type) else []
    if problems:
        raise PluginError(f"platform {name} of plugin {catalog.provider(offer)}: {'; '.join(problems)}")
    platform: Platform = make()
    return platform
