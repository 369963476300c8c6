"""The seam to hardware: a platform declares, core decides."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv_base.errors import suggestion

if TYPE_CHECKING:
    from lsv.config import EngineConfig


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
    def open(self, index: int, options: Mapping[str, OptionValue]) -> object:
        """Take a device into use: a ``lsv_runtime.devices.device.Device``.

        ``options`` are all plugins' settings by full name.
        """

    def open_rank(self, rank: int, ranks: int, options: Mapping[str, OptionValue], first: int = 0) -> object:
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


def find_misfits(cls: type, seam: type) -> list[str]:
    """What is wrong with a class for a seam, one sentence each: methods that are missing, and public ones that the seam
    does not know (most often a misspelt one, which core would never call).
    """
    known = {name for name in (*dir(seam), *seam.__annotations__) if not name.startswith("_")}
    missing = [f"{cls.__name__} lacks {name}" for name in sorted(getattr(cls, "__abstractmethods__", ()))]
    unknown = [
        f"{cls.__name__}.{name} is not part of {seam.__name__}{suggestion(name, sorted(known))} "
        "(names of a platform's own start with _)"
        for name in sorted(vars(cls))
        if not name.startswith("_") and name not in known and callable(getattr(cls, name))
    ]
    return missing + unknown
