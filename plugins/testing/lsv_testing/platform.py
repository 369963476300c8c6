"""Conformance of platforms: a third party's test calls ``check_platform(offer)`` on a machine that has the device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.offers import PlatformOffer, load_object
from lsv.platform import Platform, find_misfits
from lsv_runtime.devices.communicator import Group
from lsv_runtime.devices.device import Device, StepFn
from lsv_runtime.devices.opening import open_index
from lsv_runtime.devices.shapes import BatchLimits, Shape

_LIMITS = BatchLimits(max_rows=8, max_tokens=64, max_blocks=16)
_HEAVY = ("torch", "transformers")


def check_platform(
    offer: PlatformOffer, options: dict[str, OptionValue] | None = None, *, emulate: bool = False
) -> None:
    """Everything a platform promises, in order; raises ``AssertionError`` that says what does not hold.

    ``options`` are the plugin's settings by full name, for opening the device. The platform must find one, or have an
    emulation to ``emulate``.
    """
    load = offer.emulation if emulate else offer.load
    assert load is not None, f"{offer.name} has no emulation"
    cls = load_object(load)
    problems = find_misfits(cls, Platform)
    assert not problems, "; ".join(problems)
    platform: Platform = cls()
    assert platform.api == 1, f"{offer.name} was made for version {platform.api} of this seam, not 1"
    assert platform.name == offer.name, f"the offer's name is {offer.name}, the platform's {platform.name}"
    assert platform.attention, f"{offer.name} names no attention backend"
    check_light(offer.name, load)
    devices = tuple(platform.devices())
    assert devices, f"{offer.name} finds no device: this check needs one"
    assert emulate or tuple(offer.probe()) == devices, f"{offer.name}: probe and devices disagree"
    assert tuple(offer.probe()) or offer.explain is None or offer.explain(), f"{offer.name}: an empty explanation"
    for number, info in enumerate(devices):
        _check_info(info, number)
        check_capabilities(platform.capabilities(info))
    device = open_index(platform, devices[0].index, options or {})
    try:
        problems = find_misfits(type(device), Device)
        assert not problems, "; ".join(problems)
        check_device(device)
    finally:
        device.close()


def check_light(name: str, load: str) -> None:
    """Looking for devices must load neither torch nor transformers: it happens in processes that never will."""
    script = f"""
import sys
from lsv.offers import load_object
platform = load_object({load!r})()
for info in platform.devices():
    platform.capabilities(info)
print(*[name for name in {_HEAVY!r} if name in sys.modules])
"""
    paths = ";".join(f"sys.path.append({path!r})" for path in sys.path if path)
    found = subprocess.run(
        [sys.executable, "-c", f"import sys;{paths}\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, f"{name}: looking for devices failed: {found.stderr.strip()}"
    assert not found.stdout.strip(), f"{name}: looking for devices imports {found.stdout.strip()}"


def check_capabilities(capabilities: Capabilities) -> None:
    assert capabilities.dtypes, "capabilities name no dtype"
    for name in capabilities.dtypes:
        assert isinstance(getattr(torch, name, None), torch.dtype), f"dtype {name!r} is none of torch"
    assert capabilities.kv_dtypes[:1] == ("auto",), f"kv_dtypes must begin with auto, not {capabilities.kv_dtypes[:1]}"
    assert capabilities.in_flight >= 1, f"in_flight is {capabilities.in_flight}, at least 1 step must be"
    for refusal in capabilities.refuses:
        assert refusal.reason, f"refusing {refusal.one} with {refusal.other} needs a reason"


def check_device(device: Device) -> None:
    """An opened device: its memory, budgets, shapes, and that a tensor on it can be computed with."""
    assert torch.ones(3, device=device.torch_device).sum().item() == 3.0, "a sum on the device is wrong"
    device.synchronize()
    device.release_cache()
    _check_memory(device)
    check_compiled_steps(device)
    policy = device.shapes(_LIMITS)
    for shape in policy.warmup():
        device.compile(int, shape, eager=True)
        assert policy.pad(shape) == shape, f"{shape} is warmed up, but a step of that shape is padded further"
        assert policy.describe(shape), f"{shape} has no description"
        most = policy.pad(msgspec.structs.replace(shape, rows=_LIMITS.max_rows))
        assert shape.rows <= most.rows, (
            f"{shape} is warmed up, but a step of {_LIMITS.max_rows} rows is padded to {most}"
        )
    assert device.communicator(Group("tp", (0,), 0, "")) is None, "a group of one needs no communicator"


def check_compiled_steps(device: Device) -> None:
    """A step of each kind and form that the device has warmed up, over buffers that are filled anew after it was
    compiled: every call must compute with the values that are there. A device that captures must do so here.
    """
    policy = device.shapes(msgspec.structs.replace(_LIMITS, prompts_captured=True))
    seen = set()
    for shape in policy.warmup():
        form = shape.kind, shape.query > 1
        if form in seen:
            continue
        seen.add(form)
        step, fill = _make_step(device, shape)
        captures = device.captures
        run = device.compile(step, shape, eager=False, fillings=(partial(fill, 1), partial(fill, 0)))
        assert not captures or run is not step, f"the device says that it captures, and did not capture {shape}"
        for number in (2, 3, 2):
            fill(number)
            found = [one.clone() for one in run()]
            same = all(map(torch.allclose, found, step()))
            assert same, f"{shape}: the compiled step does not compute with what is in its buffers"


def _make_step(device: Device, shape: Shape) -> tuple[StepFn, Callable[[int], None]]:
    """A small step in the form of a model's, a token's result made of all before it; and what fills its buffers."""
    where, tokens = device.torch_device, shape.tokens or shape.rows * shape.query
    table = torch.arange(64 * 8, dtype=torch.float32, device=where).view(64, 8).sin()
    ids = torch.zeros(tokens, dtype=torch.int64, device=where)
    rows = torch.zeros(shape.rows, dtype=torch.int64, device=where)
    out = torch.zeros(shape.rows, 64, device=where)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = table.index_select(0, ids).cumsum(0).index_select(0, rows)
        return hidden, out.copy_(hidden @ table.T)

    def fill(number: int) -> None:
        for buffer, most in ((ids, 64), (rows, tokens)):
            values = (torch.arange(len(buffer)) * (number + 1) + number) % most
            buffer.copy_(values)

    return step, fill


def _check_memory(device: Device) -> None:
    memory = device.memory()
    assert memory.total > 0, f"memory in all is {memory.total}"
    assert 0 <= memory.free <= memory.total, f"{memory.free} bytes are free of {memory.total}"
    assert 0 <= memory.used <= memory.total, f"{memory.used} bytes are used of {memory.total}"
    for share in (None, 0.5, 0.9):
        budget = device.budget(memory, share)
        assert budget.kv >= 0, f"the budget for share {share} is negative: {budget.kv}"
        assert budget.kv <= memory.total, f"the budget for share {share} is over the {memory.total} bytes there are"
        assert budget.why, f"the budget for share {share} gives no reason"
    assert device.budget(memory, 0.5).kv <= device.budget(memory, 0.9).kv, "a larger share gives a smaller cache"


def _check_info(info: DeviceInfo, number: int) -> None:
    assert info.index == number, f"device {number} says it is number {info.index}"
    assert info.name, f"device {number} has no name"
    assert info.total_bytes > 0, f"device {number} has {info.total_bytes} bytes"
