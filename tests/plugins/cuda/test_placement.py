"""The kernels of the platform on tensors of an emulated GPU, which can't be mixed with tensors of the host."""

from __future__ import annotations

import os

import pytest

from lsv_cuda.emulation import EmulatedCudaPlatform
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.placement.device import placement
from lsv_testing.attention import AttentionCase, check_attention
from lsv_triton.attention.torch_backend import TorchAttention

CASE = AttentionCase("float32", 64, 2, 16, "plain")


@pytest.fixture
def device() -> Device:
    if placement() is None:
        pytest.skip("there is no C++ compiler")
    return EmulatedCudaPlatform().open(0, {})


def test_attention_in_torch(device: Device) -> None:
    check_attention(TorchAttention(), device, CASE)


@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process")
def test_attention_in_triton(device: Device) -> None:
    from lsv_triton.attention.backend import TritonAttention

    check_attention(TritonAttention(), device, CASE)
