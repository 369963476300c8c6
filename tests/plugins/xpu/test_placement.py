"""Where tensors lie on emulated Intel GPUs: vendors' kernels take those of the device, and none of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lsv_runtime.emulation.placement.device import placement
from lsv_xpu import libraries
from lsv_xpu.emulation.platform import EmulatedXpuPlatform

pytestmark = pytest.mark.skipif(placement() is None, reason="the emulated device can't be compiled here")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    libraries.forget()


@pytest.mark.parametrize(
    ("kernels", "name", "call"),
    [
        ("vllm", libraries.VLLM, lambda library, x, y: library.silu_and_mul(y, x)),
        ("ipex", libraries.IPEX, lambda library, x, y: library.silu_mul(x[:, :8], y)),
    ],
)
def test_kernels_of_vendors_take_no_tensor_of_the_host(kernels: str, name: str, call: Any) -> None:
    device = EmulatedXpuPlatform().open(0, {"xpu.emulated_kernels": kernels})
    library, where = libraries.obtain(name), device.torch_device
    x, y = torch.ones(2, 16).half().to(where), torch.ones(2, 8).half()
    call(library, x, y.to(where))
    with pytest.raises(RuntimeError, match="host"):
        call(library, x, y)
    device.close()
