"""The same tests for both ways to run kernels: in Triton's interpreter on the host, and compiled on a GPU.

Where there is a GPU they are compiled, unless ``TRITON_INTERPRET=1`` asks for the interpreter.
"""

from __future__ import annotations

import pytest
import torch
import triton

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.device import Budget, Device, Memory
from suite.interpreter import quicken

_GPU = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)
quicken()


class Place(Device):
    """Where tensors of a test are."""

    def __init__(self, torch_device: torch.device) -> None:
        self.info, self.torch_device = DeviceInfo(0, str(torch_device), 1 << 30), torch_device
        self.pinned = torch_device.type != "cpu"

    def memory(self) -> Memory:
        return Memory(total=1 << 30, free=1 << 30, used=0)

    def budget(self, memory: Memory, share: float | None) -> Budget:
        return Budget(memory.free)


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where kernels run."""
    interpreted = bool(triton.knobs.runtime.interpret)
    if request.param == "interpreter":
        if not interpreted:
            pytest.skip("kernels are compiled here: TRITON_INTERPRET=1 interprets them")
        return torch.device("cpu")
    if _GPU is None or interpreted:
        pytest.skip("no GPU is here" if _GPU is None else "kernels are interpreted: TRITON_INTERPRET=0 compiles them")
    return torch.device(_GPU)


@pytest.fixture
def place(device: torch.device) -> Device:
    """The same as a device of the engine's."""
    return Place(device)


@pytest.fixture
def host() -> Device:
    return Place(torch.device("cpu"))
