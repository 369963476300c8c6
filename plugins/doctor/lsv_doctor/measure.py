"""What one device attains: bandwidth of its memory, arithmetic, copies. A measurement takes a fraction of a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from lsv_runtime.devices.device import Device

Measurement = tuple[str, Callable[[], float]]
"""A metric's name, which ends with its unit, and what measures it."""

_ROUND = 0.05  # seconds of work between two looks at the clock
_ROUNDS = 3
_MOST_BYTES = 1 << 30
_SMALLEST_GEMM, _LARGEST_GEMM = 256, 8192
_LONG_ENOUGH = 0.01
_GIGA, _TERA = 1e9, 1e12


def time_of(run: Callable[[], object], wait: Callable[[], None]) -> float:
    """Seconds of one ``run`` at best; ``wait`` returns when all of its work is done."""
    run()
    wait()
    count, best = 1, float("inf")
    rounds = 0
    while rounds < _ROUNDS:
        began = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        elapsed = time.perf_counter() - began
        best = min(best, elapsed / count)
        if elapsed >= _ROUND:
            rounds += 1
        else:
            count = max(2 * count, min(1000 * count, int(_ROUND / max(elapsed, 1e-9) * count) + 1))
    return best


def of_memory(device: Device) -> Iterator[Measurement]:
    """Copies within the device (what is read and what is written both count) and reading alone."""
    yield "copy_gb_s", partial(_copy, device)
    yield "read_gb_s", partial(_read, device)


def of_arithmetic(device: Device, dtypes: Sequence[str]) -> Iterator[Measurement]:
    """Square products, as large as it takes to keep the device busy."""
    for dtype in dtypes:
        yield f"gemm_{dtype}_tflop_s", partial(gemm, device, getattr(torch, dtype))


def of_transfers(device: Device) -> Iterator[Measurement]:
    """Copies between the device and the host; none where the device's memory is the host's."""
    if _on_host(device):
        return
    for kind in ("pageable", "pinned") if device.pinned else ("pageable",):
        for name, to_device in (("host_to_device", True), ("device_to_host", False)):
            pinned = kind == "pinned"
            yield f"{name}_{kind}_gb_s", partial(_transfer, device, to_device=to_device, pinned=pinned)


def of_peers(devices: Sequence[Device]) -> Iterator[tuple[Device, Measurement]]:
    """Copies from each device to the next one, the last to the first."""
    if len(devices) < 2 or _on_host(devices[0]):
        return
    for source, target in zip(devices, (*devices[1:], devices[0]), strict=True):
        yield source, (f"peer_to_{target.info.index}_gb_s", partial(_peer, source, target))


def gemm(device: Device, dtype: torch.dtype) -> float:
    """TFLOP/s of the largest product that is tried: sizes double until one takes long enough to be timed well."""
    size = _SMALLEST_GEMM
    while True:
        a, b = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, dtype=dtype, device=device.torch_device)
        product = partial(torch.mm, a, b, out=out)
        if size >= _LARGEST_GEMM or min(_once(product, device) for _ in range(_ROUNDS)) >= _LONG_ENOUGH:
            return 2 * size**3 / time_of(product, device.synchronize) / _TERA
        size *= 2


def _once(run: Callable[[], object], device: Device) -> float:
    """Seconds of one run after another, without looking for the best."""
    run()
    device.synchronize()
    began = time.perf_counter()
    run()
    device.synchronize()
    return time.perf_counter() - began


def _copy(device: Device) -> float:
    source = _buffer(device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_of(partial(target.copy_, source), device.synchronize) / _GIGA


def _read(device: Device) -> float:
    source = _buffer(device)
    return source.nbytes / time_of(source.amax, device.synchronize) / _GIGA


def _transfer(device: Device, *, to_device: bool, pinned: bool) -> float:
    there = _buffer(device)
    here = torch.ones(there.shape, dtype=there.dtype, pin_memory=pinned)
    source, target = (here, there) if to_device else (there, here)
    seconds = time_of(partial(target.copy_, source, non_blocking=pinned), device.synchronize)
    return source.nbytes / seconds / _GIGA


def _peer(source: Device, target: Device) -> float:
    here = _buffer(source)
    there = torch.empty_like(here, device=target.torch_device)

    def wait() -> None:
        source.synchronize()
        target.synchronize()

    return here.nbytes / time_of(partial(there.copy_, here, non_blocking=True), wait) / _GIGA


def _buffer(device: Device) -> torch.Tensor:
    """Ones that are far larger than caches, if the device has the room."""
    size = max(1 << 20, min(_MOST_BYTES, device.memory().free // 16))
    return torch.ones(size // 4, dtype=torch.float32, device=device.torch_device)


def _on_host(device: Device) -> bool:
    return device.torch_device.type == torch.empty(0).device.type
