"""A strict fake of vllm_xpu_kernels: what ``VllmKernels`` itself calls is held against the package's own signatures."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.signatures import fake_ops
from lsv_xpu.emulation.vllm_flash import PACKAGE, VllmFlash
from lsv_xpu.emulation.vllm_ops import VllmOps
from lsv_xpu.vllm.calls import VllmKernels


class FakeVllmKernels(VllmKernels, StrictFake):
    """The adapter over ops that answer as those of the package that ``vllm_xpu_kernels.json`` was read in."""

    library = "vllm_xpu_kernels"
    opaque: ClassVar[tuple[str, ...]] = (
        "reshape_and_cache_flash",
        "flash_attn_varlen_func",
        "grouped_gemm",
    )

    def __init__(self) -> None:
        StrictFake.__init__(self)
        VllmKernels.__init__(self, fake_ops(PACKAGE, VllmOps(self)), VllmFlash(self))

    def _here(self) -> torch.device:
        return torch.device("cpu")
