"""``xpu``: Intel GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.capabilities import DeviceInfo
from lsv.config import EngineConfig
from lsv.offers import AttentionOffer, KernelOffer, OpSpec, PlatformOffer
from lsv.settings import Setting
from lsv_xpu import libraries, oneccl
from lsv_xpu.devices_table import Family, family_of
from lsv_xpu.probe import Prober

api = 1


def probe() -> tuple[DeviceInfo, ...]:
    return Prober().devices()


def explain() -> str:
    return Prober().explain()


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    yield PlatformOffer(
        "xpu",
        "lsv_xpu.platform:XpuPlatform",
        probe,
        rank=90,
        explain=explain,
        emulation="lsv_xpu.emulation:EmulatedXpuPlatform",
        tools=(("xpu-smi", "discovery"), ("sycl-ls",)),
    )


def _vllm(spec: OpSpec) -> str | None:
    from lsv_xpu.vllm_ops import why_not_vllm

    return why_not_vllm(spec)


def _vllm_int4(spec: OpSpec) -> str | None:
    from lsv_xpu.vllm_ops import why_not_vllm_int4

    return why_not_vllm_int4(spec)


def _vllm_float8(spec: OpSpec) -> str | None:
    from lsv_xpu.vllm_ops import why_not_vllm_float8

    return why_not_vllm_float8(spec)


def _vllm_experts(spec: OpSpec) -> str | None:
    from lsv_xpu.vllm_moe import why_not_grouped

    return why_not_grouped(spec)


def _torch_int4(spec: OpSpec) -> str | None:
    from lsv_xpu.torch_int4 import why_not_torch_int4

    return why_not_torch_int4(spec)


def _ipex(spec: OpSpec) -> str | None:
    from lsv_xpu.ipex_ops import why_not_ipex

    return why_not_ipex(spec)


def _missing_flash() -> str | None:
    """What keeps ``xpu-flash`` from being chosen here: its library has no attention for the oldest generation."""
    missing = libraries.missing_vllm_kernels()
    if missing is not None:
        return missing
    old = next((info.name for info in probe() if family_of(info) is Family.ALCHEMIST), None)
    return None if old is None else f"a GPU that vllm_xpu_kernels has attention for, such as Battlemage (found {old})"


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    flash, paged = "lsv_xpu.flash_attention:FlashAttention", "lsv_xpu.ipex_attention:IpexAttention"
    flash_sizes, paged_sizes = (64, 32, 16), (64, 32, 16, 128)
    yield AttentionOffer("xpu-flash", flash, flash_sizes, ("xpu",), missing=_missing_flash)
    yield AttentionOffer("ipex-paged", paged, paged_sizes, ("xpu", "cpu"), missing=libraries.missing_ipex)
    yield AttentionOffer("xpu-flash-emulated", flash, flash_sizes, ("xpu",))
    yield AttentionOffer("ipex-paged-emulated", paged, paged_sizes, ("xpu",))


@hookimpl
def lsv_kernels() -> Iterable[KernelOffer]:
    """What vendors offer, before what is our own: vllm_xpu_kernels, PyTorch itself, IPEX. None of them says that a
    row's bits are the same in other company.
    """
    gates = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh")
    yield KernelOffer("rms_norm", "xpu", "lsv_xpu.vllm_ops:RmsNorm", _vllm, rank=40)
    yield KernelOffer("rope", "xpu", "lsv_xpu.vllm_ops:Rotate", _vllm, rank=40)
    for name in gates:
        yield KernelOffer(f"{name}_mul", "xpu", "lsv_xpu.vllm_ops:GatedProduct", _vllm, rank=40)
    for op in ("linear.int4", "linear.coded"):
        yield KernelOffer(op, "xpu", "lsv_xpu.vllm_ops:VllmInt4Linear", _vllm_int4, rank=40)
        yield KernelOffer(op, "xpu", "lsv_xpu.torch_int4:TorchInt4Linear", _torch_int4, rank=30)
    yield KernelOffer("linear.coded", "xpu", "lsv_xpu.vllm_ops:Fp8Linear", _vllm_float8, rank=40)
    yield KernelOffer("moe", "xpu", "lsv_xpu.vllm_moe:GroupedExperts", _vllm_experts, rank=40)
    yield KernelOffer("rms_norm", "xpu", "lsv_xpu.ipex_ops:RmsNorm", _ipex, rank=20)
    yield KernelOffer("rope", "xpu", "lsv_xpu.ipex_ops:Rotate", _ipex, rank=20)
    for name in gates:
        yield KernelOffer(f"{name}_mul", "xpu", "lsv_xpu.ipex_ops:GatedProduct", _ipex, rank=20)


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="xpu.graph",
        default="auto",
        choices=("auto", "0", "1"),
        env=("VLLM_XPU_ENABLE_XPU_GRAPH",),
        help="replay decoding steps from graphs: auto where they give the values of the plain step; 1 insists; 0 never",
    )
    yield Setting(
        name="xpu.graph_rows",
        type="int",
        default=64,
        low=0,
        help="decoding steps of up to so many requests are captured; 0 captures none",
    )
    yield Setting(
        name="xpu.affinity_mask",
        env=("ZE_AFFINITY_MASK",),
        help="the devices to use, such as 0,1",
    )
    yield Setting(
        name="xpu.worker_method",
        default="spawn",
        env=("VLLM_WORKER_MULTIPROC_METHOD",),
        help="how worker processes start: only spawn",
    )
    yield from oneccl.settings()
    yield Setting(name="xpu.emulated_devices", type="int", default=2, low=1, high=16, help="devices of --emulate")
    yield Setting(
        name="xpu.emulated_kernels",
        default="none",
        choices=tuple(libraries.EMULATED),
        help="the vendor's kernels of --emulate, answered by fakes: none, vllm (vllm_xpu_kernels and PyTorch's), ipex",
    )
    yield Setting(name="xpu.emulated_model", default="B60", help="what --emulate stands for: A770, B50, B60, B70 …")
    yield Setting(
        name="xpu.emulated_memory",
        type="float",
        default=2.0,
        low=0.01,
        help="GiB of host memory that each device of --emulate has",
    )


@hookimpl
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    if config.platform != "xpu":
        return ()
    from lsv_xpu.checks import problems

    return problems(config)
