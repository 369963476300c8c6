"""What is wrong with a configuration for Intel GPUs, before anything starts. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsv.config import EngineConfig
from lsv_xpu import oneccl
from lsv_xpu.emulation.platform import EmulatedXpuPlatform
from lsv_xpu.probe import Prober

_MASK = re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?)*")


def problems(config: EngineConfig) -> Iterator[str]:
    """One sentence each."""
    options = config.options
    yield from oneccl.problems(options)
    mask = options.get("xpu.affinity_mask")
    if mask:
        yield from _mask_problems(str(mask), emulate=config.emulate)
    yield from _emulation_problems(config) if config.emulate else _count_problems(config)


def _mask_problems(mask: str, *, emulate: bool) -> Iterator[str]:
    if not _MASK.fullmatch(mask):
        yield (
            f"xpu-affinity-mask (ZE_AFFINITY_MASK) must be numbers of devices, or device.tile, with commas between "
            f"(0,1 or 0.0,1.0), got {mask!r}"
        )
        return
    if emulate:
        return
    prober, named = Prober(), mask.split(",")
    found = len(prober.devices())
    if prober.mask() == mask:
        # the driver has applied it already
        if found < len(set(named)):
            yield f"ZE_AFFINITY_MASK={mask} names {len(set(named))} devices, but {found} of them are there"
    elif beyond := [one for one in named if int(one.partition(".")[0]) >= found]:
        yield f"xpu-affinity-mask={mask} names {', '.join(beyond)}, but there are {found} devices, numbered from 0"


def _count_problems(config: EngineConfig) -> Iterator[str]:
    devices = Prober().devices()
    wanted = config.device + config.devices
    if wanted > len(devices):
        names = ", ".join(info.name for info in devices)
        yield f"{_asked(config)} needs {wanted} devices, and there are {names or 'none'}"


def _asked(config: EngineConfig) -> str:
    """What asks for several devices."""
    ranks = config.topology
    sizes = {"tensor": ranks.tensor, "pipeline": ranks.pipeline, "data": ranks.data}
    asked = [f"{name}_parallel_size={size}" for name, size in sizes.items() if size > 1 or name == "tensor"]
    return " with ".join(asked)


def _emulation_problems(config: EngineConfig) -> Iterator[str]:
    count = len(EmulatedXpuPlatform().emulated_devices(config.options))
    if config.devices > count:
        yield (
            f"{_asked(config)} needs {config.devices} devices, and {count} are emulated: raise --xpu-emulated-devices"
        )
