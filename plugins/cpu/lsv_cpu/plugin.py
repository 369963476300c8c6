"""``cpu``: the platform every machine has."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.capabilities import DeviceInfo
from lsv.offers import AttentionOffer, KernelOffer, PlatformOffer, lazy
from lsv.settings import Setting
from lsv_cpu.machine import INSTRUCTION_SETS, Machine

api = 2

_NATIVE = lazy("lsv_cpu.kernels:why_not_native")
_PANELS = lazy("lsv_cpu.linear:why_not_panels")
_GATED = lazy("lsv_cpu.linear:why_not_gated")
_EXPERTS = lazy("lsv_cpu.experts:why_not_experts")
_FUSED = lazy("lsv_cpu.layer:why_not_fused")
_ADAPTERS = lazy("lsv_cpu.adapters:why_not_adapters")
_TIED = lazy("lsv_cpu.embed:why_not_tied")


def probe() -> tuple[DeviceInfo, ...]:
    return (Machine().device_info(),)


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    yield PlatformOffer(
        "cpu",
        "lsv_cpu.platform:CpuPlatform",
        probe,
        rank=0,
        resource="",
        emulation="lsv_cpu.platform:EmulatedCpuPlatform",
    )


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    yield AttentionOffer("cpu-paged", "lsv_cpu.attention:CpuAttention", (32, 16, 64, 128), ("cpu",), row_invariant=True)


@hookimpl
def lsv_kernels() -> Iterable[KernelOffer]:
    yield KernelOffer("layer", "cpu", "lsv_cpu.layer:FusedLayer", _FUSED, row_invariant=True, adapters=True)
    yield KernelOffer("linear", "cpu", "lsv_cpu.linear:PanelLinear", _PANELS, row_invariant=True)
    yield KernelOffer("linear.int8", "cpu", "lsv_cpu.linear:PanelLinear", _PANELS, row_invariant=True)
    yield KernelOffer("linear.int4", "cpu", "lsv_cpu.linear:PanelLinear", _PANELS, row_invariant=True)
    yield KernelOffer("linear.coded", "cpu", "lsv_cpu.linear:PanelLinear", _PANELS, row_invariant=True)
    yield KernelOffer("linear.coded_static", "cpu", "lsv_cpu.linear:PanelLinear", _PANELS, row_invariant=True)
    yield KernelOffer("linear.heads", "cpu", "lsv_cpu.linear:PanelHeads", _PANELS, row_invariant=True)
    yield KernelOffer("gated_mlp", "cpu", "lsv_cpu.linear:PanelMLP", _GATED, row_invariant=True, adapters=True)
    yield KernelOffer("lora.add", "cpu", "lsv_cpu.adapters:NativeAdapters", _ADAPTERS, row_invariant=True)
    yield KernelOffer("moe", "cpu", "lsv_cpu.experts:NativeExperts", _EXPERTS, row_invariant=True)
    yield KernelOffer("moe.spread", "cpu", "lsv_cpu.experts:NativeSpreadExperts", _EXPERTS, row_invariant=True)
    yield KernelOffer("moe.exchanged", "cpu", "lsv_cpu.experts:NativeSpreadExperts", _EXPERTS, row_invariant=True)
    yield KernelOffer("embed", "cpu", "lsv_cpu.embed:PanelEmbed", _TIED, row_invariant=True)
    yield KernelOffer("speculator", "cpu", "lsv_cpu.speculator:NativeSpeculator", _PANELS, row_invariant=True)
    yield KernelOffer("rms_norm", "cpu", "lsv_cpu.kernels:RmsNorm", _NATIVE, row_invariant=True)
    yield KernelOffer("silu_mul", "cpu", "lsv_cpu.kernels:SiluMul", _NATIVE, row_invariant=True)
    yield KernelOffer("rope", "cpu", "lsv_cpu.kernels:Rotate", _NATIVE, row_invariant=True)
    yield KernelOffer("sample", "cpu", "lsv_cpu.sampling:NativeChoose", _NATIVE, row_invariant=True)
    yield KernelOffer("logprobs", "cpu", "lsv_cpu.sampling:NativeDescribe", _NATIVE, row_invariant=True)


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="cpu.threads",
        type="int",
        default=0,
        env=("OMP_NUM_THREADS",),
        help="compute threads; 0 takes one for each physical core this process may use",
    )
    yield Setting(
        name="cpu.bind",
        default="auto",
        env=("VLLM_CPU_OMP_THREADS_BIND",),
        help='cores to run on: "auto" divides them among ranks, "nobind" binds nothing, or a list such as 0-31 or '
        "0,1,2; one list per rank is written 0-31|32-63",
    )
    yield Setting(
        name="cpu.kvcache_space",
        type="float",
        default=0.0,
        env=("VLLM_CPU_KVCACHE_SPACE",),
        help="GiB of KV cache; 0 takes min(4 GiB, a quarter of the memory limit)",
    )
    yield Setting(
        name="cpu.isa",
        default="auto",
        choices=("auto", *reversed(INSTRUCTION_SETS)),
        help="the newest instruction set that native kernels may use",
    )
    yield Setting(
        name="cpu.native",
        default="auto",
        choices=("auto", "off"),
        help="auto compiles native kernels on first use; off runs plain torch instead",
    )
    yield Setting(
        name="cpu.cache_dir",
        help="folder for compiled kernels, in lsv/cpu below it (default: that of --cache-root)",
    )
