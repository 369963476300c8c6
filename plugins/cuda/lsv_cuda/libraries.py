"""The libraries of attention for NVIDIA's and AMD's GPUs: what each lacks to be used here, and its fake."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lsv.capabilities import DeviceInfo
from lsv.settings import environment_with
from lsv_cuda.machine import Machine, capability
from lsv_cuda.makers import AMD, NVIDIA
from lsv_runtime.devices.libraries import Libraries, Library, installed

FLASHINFER = "flashinfer"
FLASH_ATTN_2 = "flash_attn"
FLASH_ATTN_3 = "flash_attn_3"

_FLASHINFER_LOWEST, _FLASH_ATTN_LOWEST = (7, 5), (8, 0)
_FLASH_ATTN_3_MAJORS = (8, 9)
"""flash-attn 3 is compiled to native code for 8.0 and 9.0 alone."""
_FLASH_ATTN_TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")
"""Beginnings of the targets that flash-attn 2 can be built for."""


def missing_flashinfer(gpus: Sequence[DeviceInfo] | None = None) -> str | None:
    """Its kernels are compiled when they are first used, unless the package of compiled ones is there."""
    if installed("flashinfer-python") is None:
        return "the package flashinfer-python: pip install flashinfer-python, held to the torch that is there"
    if installed("flashinfer-jit-cache") is None and not _has_nvcc():
        return "compiled kernels: run flashinfer install-jit-cache-wheel, or install CUDA's compiler nvcc"
    return _too_old("FlashInfer", _FLASHINFER_LOWEST, gpus)


def missing_flash_attn_2(gpus: Sequence[DeviceInfo] | None = None) -> str | None:
    """Its library is built against one release of torch: beside another it does not load, which shows then."""
    if installed("flash-attn") is None:
        return "the package flash-attn, built for this torch: pip install --no-build-isolation flash-attn"
    for gpu in Machine(maker=AMD).gpus() if gpus is None else ():
        target = gpu.detail.get("target", "")
        if not target.startswith(_FLASH_ATTN_TARGETS):
            return f"a GPU that flash-attn can be built for (found {gpu.name}, {target})"
    return _too_old("flash-attn", _FLASH_ATTN_LOWEST, gpus)


def missing_flash_attn_3(gpus: Sequence[DeviceInfo] | None = None) -> str | None:
    if installed("flash-attn-3") is None:
        return "the package flash-attn-3, which is built from the folder hopper of flash-attn's sources"
    for gpu in Machine(maker=NVIDIA).gpus() if gpus is None else gpus:
        if capability(gpu)[0] not in _FLASH_ATTN_3_MAJORS:
            found = gpu.detail["compute_capability"]
            return (
                f"a GPU of compute capability 8.x or 9.x, which flash-attn 3 is built for (found {gpu.name}, {found})"
            )
    return None


def _too_old(library: str, lowest: tuple[int, int], gpus: Sequence[DeviceInfo] | None) -> str | None:
    for gpu in Machine(maker=NVIDIA).gpus() if gpus is None else gpus:
        if capability(gpu) < lowest:
            wanted, found = ".".join(map(str, lowest)), gpu.detail["compute_capability"]
            return f"a GPU of compute capability {wanted} or newer, which {library} needs (found {gpu.name}, {found})"
    return None


def _has_nvcc() -> bool:
    """Where FlashInfer looks for the compiler."""
    environment = environment_with({})
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or Path(home, "bin", "nvcc").exists()


LIBRARIES: Mapping[str, Library] = {
    FLASHINFER: Library(
        missing_flashinfer, "lsv_cuda.flashinfer.calls:FlashInfer", "lsv_cuda.fakes.flashinfer:FakeFlashInfer"
    ),
    FLASH_ATTN_2: Library(
        missing_flash_attn_2, "lsv_cuda.flash_attn.calls:FlashAttn2", "lsv_cuda.fakes.flash_attn:FakeFlashAttn2"
    ),
    FLASH_ATTN_3: Library(
        missing_flash_attn_3, "lsv_cuda.flash_attn.calls:FlashAttn3", "lsv_cuda.fakes.flash_attn:FakeFlashAttn3"
    ),
}
EMULATED: Mapping[str, tuple[str, ...]] = {
    "none": (), "flashinfer": (FLASHINFER,), "flash-attn": (FLASH_ATTN_2,), "flash-attn-3": (FLASH_ATTN_3,)
}  # fmt: skip
"""The values of ``cuda.emulated_kernels``, and the libraries of which each has a fake."""

_LIBRARIES = Libraries(LIBRARIES, EMULATED, "cuda.emulated_kernels")

obtain, opaque_calls = _LIBRARIES.obtain, _LIBRARIES.opaque_calls
emulate, use, forget = _LIBRARIES.emulate, _LIBRARIES.use, _LIBRARIES.forget
