"""One opened device of any kind, by what the modules of torch for kinds of devices have in common and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lsv.capabilities import DeviceInfo
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Budget, Device, Memory

_GIB = 1 << 30
_SHARE = 0.9


class TorchDevice(Device):
    """Work is done, or waited for, in the order given. What the device's module of torch lacks is done without."""

    def __init__(self, info: DeviceInfo, where: torch.device, total: int = 0) -> None:
        """``total`` bytes are what it may use in all; 0 for what it tells or, where it tells nothing, its info says."""
        self.info, self.torch_device, self._total = info, where, total
        self._module = None if where.type == "cpu" else torch.get_device_module(where)
        set_device = self._find("set_device")
        if set_device is not None and where.index is not None:
            set_device(where.index)

    def memory(self) -> Memory:
        told = self._told()
        if told is None or self._total:
            total = self._total or self.info.total_bytes
            used = self._used()
            return Memory(total=total, free=max(0, total - used), used=used)
        return Memory(total=told[1], free=told[0], used=min(told[1], self._used()))

    def budget(self, memory: Memory, share: float | None) -> Budget:
        left = min(int((share or _SHARE) * memory.total) - memory.used, memory.free)
        return Budget(max(0, left), why=f"{share or _SHARE:g} of {memory.total / _GIB:.1f} GiB, less what is in use")

    def synchronize(self) -> None:
        self._call("synchronize")

    def release_cache(self) -> None:
        self._call("empty_cache")

    def close(self) -> None:
        self.synchronize()
        self.release_cache()

    def _told(self) -> tuple[int, int] | None:
        """Free and total bytes, where the device tells."""
        info = self._find("mem_get_info")
        if info is not None:
            free, total = info(self.torch_device)
            return int(free), int(total)
        most = self._find("recommended_max_memory")  # of mps, whose memory is the host's
        return None if most is None else (max(0, int(most()) - self._used()), int(most()))

    def _used(self) -> int:
        for name in ("memory_reserved", "driver_allocated_memory"):
            found = self._find(name)
            if found is not None:
                return int(found())
        return 0

    def _call(self, name: str) -> None:
        found = self._find(name)
        if found is not None:
            found()

    def _find(self, name: str) -> Callable[..., Any] | None:
        return getattr(self._module, name, None)


def try_out(where: torch.device) -> None:
    """Compute there what every engine needs. Raises ``ConfigError`` naming what fails or differs from the host's."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(8, 16, generator=source)
    places = torch.tensor([3, 0, 3, 7])
    large = torch.tensor([0xD2511F53, 0xCD9E8D57], dtype=torch.int64)
    trials: dict[str, Callable[[torch.device], torch.Tensor]] = {
        "a product of matrices": lambda to: x.to(to) @ x.to(to).T,
        "a softmax": lambda to: x.to(to).softmax(-1),
        "rows picked by their numbers": lambda to: x.to(to)[places.to(to)],
        "rows written by their numbers": lambda to: x.to(to).index_copy(0, places[1:].to(to), x[:3].to(to)),
        "64-bit integers": lambda to: (large.to(to) * 0x9E3779B9) >> 32,
        "an order of numbers": lambda to: x.to(to).argsort(dim=-1, stable=True),
    }
    for what, trial in trials.items():
        try:
            found = trial(where).cpu()
        except Exception as cause:
            line = str(cause).partition("\n")[0]
            raise ConfigError(f"{where} can't serve: it fails at {what} ({line})", param="torch.device") from cause
        if not torch.allclose(found, trial(torch.device("cpu")), atol=1e-3):
            raise ConfigError(f"{where} can't serve: it computes {what} wrongly", param="torch.device")
