"""One rank of a measurement: ``python -m lsv_doctor.rank FD PARENT`` takes an order and answers with figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from lsv.plugins import load
from lsv.resolve.hardware import load_platform
from lsv_base.errors import ConfigError
from lsv_base.processes.lifeline import connect
from lsv_doctor.ranks import Measured, Order
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.opening import open_rank

Collective = Callable[[torch.Tensor], torch.Tensor]

SIZES: Mapping[str, int] = {"8_kib": 8 << 10, "1_mib": 1 << 20, "32_mib": 32 << 20}
"""Bytes each rank brings: a decoding step's hidden states of one row, of many, and a prompt's."""

_CALLS = 8
_MICRO, _GIGA = 1e-6, 1e9


def main(descriptor: int, parent: int) -> None:
    channel = connect(descriptor, parent, Order)
    order: Order = channel.receive()
    platform = load_platform(order.platform, load(order.plugins).catalog, emulate=order.emulate)
    device = open_rank(platform, order.rank, order.size, order.options)
    communicator = device.communicator(Group("tp", tuple(range(order.size)), order.rank, order.address))
    if communicator is None:
        raise ConfigError(f"platform {order.platform} connects no ranks")
    communicator.self_test()
    found = dict(measure(device, communicator))
    communicator.close()
    device.close()
    channel.send(Measured(found))


def measure(device: Device, communicator: Communicator) -> Iterator[tuple[str, float]]:
    """Metric -> value: microseconds of the smallest size, GB/s of what a rank brings for the others."""
    collectives = {
        "all_reduce": communicator.all_reduce,
        "all_gather": communicator.all_gather,
        "broadcast": communicator.broadcast,
    }
    smallest = min(SIZES.values())
    for name, collective in collectives.items():
        for label, size in SIZES.items():
            x = torch.ones(size // 4, dtype=torch.float32, device=device.torch_device)
            seconds = _time_of(collective, x, device)
            if size == smallest:
                yield f"{name}_{label}_us", seconds / _MICRO
            else:
                yield f"{name}_{label}_gb_s", size / seconds / _GIGA


def _time_of(collective: Collective, x: torch.Tensor, device: Device) -> float:
    """Seconds of one call at best. All ranks make the same number of calls, or one would wait forever."""
    best = float("inf")
    for _ in range(_CALLS):
        device.synchronize()
        began = time.perf_counter()
        collective(x)
        device.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
