"""The libraries of kernels for Intel's GPUs: what each lacks to be used here, and the fakes that stand for them."""

from __future__ import annotations

from collections.abc import Mapping

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.libraries import Libraries, Library, installed
from lsv_xpu.devices_table import LACKS, Family, family_of

VLLM = "vllm_xpu_kernels"
FP8_GEMM = "fp8_gemm of vllm_xpu_kernels"
"""Its product of 8-bit floats by such, apart from the rest: where a GPU multiplies none, both are widened."""
TORCH_INT4 = "torch_int4"
IPEX = "ipex"

TESTED_VLLM: Mapping[str, str] = {"2.13": "0.1.15.1", "2.14": "0.1.16.2"}
"""The last release of vllm-xpu-kernels for each release of torch, as the packages' own README says: up to 0.1.15.1 they
are built for 2.13, and from 0.1.15.3 on for 2.14. All of these have the ops that are called, with the same arguments.
"""

TESTED_IPEX = "2.8"
"""The IPEX release the adapters were run against, and the last one that is published everywhere."""

VLLM_FAMILIES = (Family.BATTLEMAGE, Family.PONTE_VECCHIO)
"""The families that its published packages can run on: they hold native code for these (``spir64_gen`` alone, in the
binaries of 0.1.12.1 to 0.1.16.2), and none that a driver could compile for another.
"""


def missing_vllm_kernels() -> str | None:
    """Its libraries are built against one release of torch, whose C++ interface is not that of another."""
    version, torch = installed("vllm-xpu-kernels"), installed("torch")
    if version is None:
        pairs = ", ".join(f"{kernels} beside torch {release}" for release, kernels in TESTED_VLLM.items())
        return f"the package vllm-xpu-kernels: pip install --no-deps vllm-xpu-kernels=={pairs}, built for XPU"
    if torch is None or "xpu" not in torch:
        return f"a PyTorch built for XPU beside vllm-xpu-kernels {version} (found torch {torch})"
    wanted = "2.14" if _numbers(version) >= (0, 1, 15, 2) else "2.13"
    if _release(torch) != wanted:
        kernels = TESTED_VLLM.get(_release(torch))
        instead = f", or vllm-xpu-kernels {kernels}, which is built for the torch that is there" if kernels else ""
        return f"PyTorch {wanted} for XPU, which vllm-xpu-kernels {version} is built for (found torch {torch}){instead}"
    return None


def why_not_family(info: DeviceInfo) -> str | None:
    """None, or what vllm_xpu_kernels lacks on a device."""
    family = family_of(info)
    if family in VLLM_FAMILIES:
        return None
    names = " or ".join(one.value for one in VLLM_FAMILIES)
    return f"a GPU that vllm_xpu_kernels is compiled for, {names} (found {info.name}, {family.value})"


def why_not_float8(info: DeviceInfo, wanted: str) -> str | None:
    """None, or what keeps activations from being rounded on a device; ``wanted`` is ``xpu.fp8_activations``."""
    if wanted == "auto" and "fp8" in LACKS[family_of(info)]:
        return f"matrix engines for 8-bit floats (found {info.name}); --xpu-fp8-activations 1 takes it all the same"
    return "--xpu-fp8-activations other than 0" if wanted == "0" else None


def missing_torch_int4() -> str | None:
    torch = installed("torch")
    if torch is None or "xpu" not in torch:
        return f"a PyTorch built for XPU, which alone has the int4 product (found torch {torch})"
    return None


def missing_ipex() -> str | None:
    """Beside another torch IPEX prints a line and raises ``AttributeError`` on import, so versions come first."""
    version, torch = installed("intel-extension-for-pytorch"), installed("torch")
    if version is None:
        return "intel-extension-for-pytorch: pip install -e '.[ipex]'"
    if torch is None or _release(torch) != _release(version):
        return (
            f"PyTorch {_release(version)} beside intel-extension-for-pytorch {version} (found torch {torch}): "
            f"the tested pair is {TESTED_IPEX} and {TESTED_IPEX}"
        )
    return None


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())


LIBRARIES: Mapping[str, Library] = {
    VLLM: Library(
        missing_vllm_kernels, "lsv_xpu.vllm.calls:VllmKernels", "lsv_xpu.emulation.vllm_kernels:FakeVllmKernels"
    ),
    FP8_GEMM: Library(
        missing_vllm_kernels, "lsv_xpu.vllm.calls:VllmKernels", "lsv_xpu.emulation.vllm_kernels:FakeVllmKernels"
    ),
    TORCH_INT4: Library(
        missing_torch_int4, "lsv_xpu.torch_int4:TorchInt4", "lsv_xpu.emulation.torch_int4:FakeTorchInt4"
    ),
    IPEX: Library(missing_ipex, "lsv_xpu.ipex.calls:Ipex", "lsv_xpu.emulation.ipex:FakeIpex"),
}
EMULATED: Mapping[str, tuple[str, ...]] = {"none": (), "vllm": (VLLM, FP8_GEMM, TORCH_INT4), "ipex": (IPEX,)}
"""The values of ``xpu.emulated_kernels``, and the libraries of which each has a fake."""

_LIBRARIES = Libraries(LIBRARIES, EMULATED, "xpu.emulated_kernels")

obtain, why_not, opaque_calls = _LIBRARIES.obtain, _LIBRARIES.why_not, _LIBRARIES.opaque_calls
emulate, use, refuse, forget = _LIBRARIES.emulate, _LIBRARIES.use, _LIBRARIES.refuse, _LIBRARIES.forget
