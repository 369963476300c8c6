"""What runs an engine: platforms, attention backends, kernels, executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lsv.capabilities import DeviceInfo, Layout
from lsv.config import EngineConfig


class OpSpec(msgspec.Struct, frozen=True):
    """What a module asks of a kernel: the op's name and the numbers a kernel may care about."""

    op: str
    dtype: str
    format: str = "plain"
    """How the weights are stored."""
    shape: Mapping[str, int] = {}
    flags: frozenset[str] = frozenset()
    adapters: bool = False
    """Whether layers below the module have slots for adapters."""


class PlatformOffer(msgspec.Struct, frozen=True):
    """A platform."""

    name: str
    load: str
    """A ``lsv.platform.Platform``."""
    probe: Callable[[], tuple[DeviceInfo, ...]]
    """Looks for devices, without torch."""
    rank: int = 0
    """Among the platforms that find a device, the one with the highest rank is the default."""
    explain: Callable[[], str] | None = None
    """Where there is no device: what was looked for, what was found, and how to install what is missing."""
    emulation: str | None = None
    """What ``--emulate`` opens: the same code on the host's memory, with a fake that answers the vendor's calls."""
    tools: tuple[tuple[str, ...], ...] = ()
    """The vendor's commands whose output belongs in a bug report, where they are installed."""
    resource: str = "GPU"
    """What Ray calls a device, as it counts them on the machines of a cluster; empty for the host's own cores."""


class AttentionOffer(msgspec.Struct, frozen=True):
    """An attention backend."""

    name: str
    load: str
    """A ``lsv_runtime.attention.AttentionBackend``."""
    block_sizes: tuple[int, ...]
    """The sizes of cache blocks it takes, in tokens; the first is the default."""
    platforms: tuple[str, ...] = ()
    """Where it runs; empty is anywhere."""
    layout: Layout = "flat"
    """The layout of the steps it takes."""
    missing: Callable[[], str | None] | None = None
    """What it lacks to run here, or None; a platform's first backend that lacks nothing is its default. No torch."""
    dtypes: tuple[str, ...] = ()
    """Of the steps it takes; empty is any."""
    kv_dtypes: tuple[str, ...] = ()
    """Of the caches it has, ``"auto"`` for the steps' own; empty is any."""
    aliases: tuple[str, ...] = ()
    """Other names for it, which several backends may share: the platform's first that can run is meant."""
    row_invariant: bool = False
    """Whether a row's result is the same in any company."""


class KernelOffer(msgspec.Struct, frozen=True):
    """An implementation of one op on one platform."""

    op: str
    platform: str
    """``"*"`` is any."""
    load: str
    """A callable ``(module, spec) -> kernel``; see ``lsv_runtime.ops``."""
    supports: Callable[[OpSpec], str | None]
    """Answers None, or why not."""
    row_invariant: bool = False
    """Whether a row's result is the same in any company."""
    rank: int = 0
    """Kernels of the highest rank are asked first."""
    unwanted: Callable[[EngineConfig], str | None] | None = None
    """Looks at the whole configuration: None, or why the kernel is not bound for it at all."""
    adapters: bool = False
    """Of a kernel for several layers: whether it leaves steps with adapters to the layers themselves."""
    looks_up: bool = False
    """Of a kernel for a linear layer: whether it is a ``lsv_runtime.ops.TableKernel``, which ``looked_up`` layers need.
    """


class ExecutorOffer(msgspec.Struct, frozen=True):
    """A way to run workers: in this process, in processes of their own, on other machines."""

    name: str
    load: str
    join: str = ""
    """Names a ``(config, catalog, delay) -> None`` that runs the ranks of a machine other than the first, until the
    engine ends. ``delay`` says how long to wait before each attempt to join. Empty if the executor uses one machine.
    """


class PlacerOffer(msgspec.Struct, frozen=True):
    """What finds machines for the replicas of a server and runs an engine on each, by ``--data-parallel-backend``."""

    name: str
    load: str
    """Names a ``(config, catalog) -> lsv.engine.replicas.nodes.placer.Placer``, made in a process of its own."""


class KVTransportOffer(msgspec.Struct, frozen=True):
    """What keeps contents of the KV cache outside the engine."""

    name: str
    load: str
    """Names a ``(lsv.transports.Site) -> lsv.transports.Transport``, made in the engine's process and in each worker;
    light to import."""
    switch: str
    """The setting of the plugin's that asks for it by having a value; its folder, say."""
    exchange: str = ""
    """Names a ``(lsv.transports.exchange.Seat) -> lsv.transports.exchange.Exchange``, made in the engine's process for
    ``--kv-role``; empty where what it keeps can't be handed on."""
