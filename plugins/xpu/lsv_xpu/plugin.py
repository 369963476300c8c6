"""``xpu``: Intel GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.capabilities import DeviceInfo
from lsv.config import EngineConfig
from lsv.offers import AttentionOffer, KernelOffer, PlatformOffer, lazy
from lsv.settings import Setting
from lsv.settings.neutral import neutral
from lsv_xpu import libraries, oneccl
from lsv_xpu.probe import Prober

api = 2

_VLLM = lazy("lsv_xpu.vllm.ops:why_not_vllm")
_VLLM_INT4 = lazy("lsv_xpu.vllm.ops:why_not_vllm_int4")
_VLLM_FLOAT8 = lazy("lsv_xpu.vllm.ops:why_not_vllm_float8")
_VLLM_FP8_GEMM = lazy("lsv_xpu.vllm.ops:why_not_vllm_fp8_gemm")
_VLLM_EXPERTS = lazy("lsv_xpu.vllm.moe:why_not_grouped")
_TORCH_INT4 = lazy("lsv_xpu.torch_int4:why_not_torch_int4")
_IPEX = lazy("lsv_xpu.ipex.ops:why_not_ipex")


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
        emulation="lsv_xpu.emulation.platform:EmulatedXpuPlatform",
        tools=(("xpu-smi", "discovery"), ("sycl-ls",)),
    )


def _missing_flash() -> str | None:
    """What keeps ``xpu-flash`` from being chosen here."""
    missing = libraries.missing_vllm_kernels()
    if missing is not None:
        return missing
    return next((why for info in probe() if (why := libraries.why_not_family(info)) is not None), None)


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    flash, paged = "lsv_xpu.vllm.attention:FlashAttention", "lsv_xpu.ipex.attention:IpexAttention"
    flash_sizes, paged_sizes = (64, 128), (64, 32, 16, 128)
    halves, caches = ("float16", "bfloat16"), ("auto", "fp8_e4m3", "fp8_e5m2")
    yield AttentionOffer(
        "xpu-flash", flash, flash_sizes, ("xpu",), missing=_missing_flash, dtypes=halves, kv_dtypes=caches,
        aliases=("FLASH_ATTN",),
    )  # fmt: skip
    yield AttentionOffer("ipex-paged", paged, paged_sizes, ("xpu", "cpu"), missing=libraries.missing_ipex)
    yield AttentionOffer("xpu-flash-emulated", flash, flash_sizes, ("xpu",))
    yield AttentionOffer("ipex-paged-emulated", paged, paged_sizes, ("xpu",))


@hookimpl
def lsv_kernels() -> Iterable[KernelOffer]:
    """What vendors offer, before what is our own: vllm_xpu_kernels, PyTorch itself, IPEX. None of them says that a
    row's bits are the same in other company.
    """
    gates = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh")
    yield KernelOffer("layer", "xpu", "lsv_xpu.vllm.layer:VllmLayer", _VLLM, rank=40)
    yield KernelOffer("rms_norm", "xpu", "lsv_xpu.vllm.ops:RmsNorm", _VLLM, rank=40)
    yield KernelOffer("rope", "xpu", "lsv_xpu.vllm.ops:Rotate", _VLLM, rank=40)
    for name in gates:
        yield KernelOffer(f"{name}_mul", "xpu", "lsv_xpu.vllm.ops:GatedProduct", _VLLM, rank=40)
    for op in ("linear.int4", "linear.coded"):
        yield KernelOffer(op, "xpu", "lsv_xpu.vllm.ops:VllmInt4Linear", _VLLM_INT4, rank=40)
        yield KernelOffer(op, "xpu", "lsv_xpu.torch_int4:TorchInt4Linear", _TORCH_INT4, rank=30)
    yield KernelOffer("linear.coded", "xpu", "lsv_xpu.vllm.ops:Fp8Linear", _VLLM_FLOAT8, rank=40)
    yield KernelOffer("linear.coded", "xpu", "lsv_xpu.vllm.ops:RoundedFp8Linear", _VLLM_FP8_GEMM, rank=41)
    yield KernelOffer("moe", "xpu", "lsv_xpu.vllm.moe:GroupedExperts", _VLLM_EXPERTS, rank=40)
    yield KernelOffer("rms_norm", "xpu", "lsv_xpu.ipex.ops:RmsNorm", _IPEX, rank=20)
    yield KernelOffer("rope", "xpu", "lsv_xpu.ipex.ops:Rotate", _IPEX, rank=20)
    for name in gates:
        yield KernelOffer(f"{name}_mul", "xpu", "lsv_xpu.ipex.ops:GatedProduct", _IPEX, rank=20)


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
        name="xpu.graph_tokens",
        type="int",
        default=512,
        low=0,
        help="steps with prompts of up to so many tokens are captured, where attention allows; 0 captures none",
    )
    yield Setting(
        name="xpu.fp8_activations",
        default="auto",
        choices=("auto", "0", "1"),
        help="round activations to fp8 by token for weights in fp8 (W8A8): auto where the GPU multiplies fp8; 0 never",
    )
    yield Setting(
        name="xpu.affinity_mask",
        env=("ZE_AFFINITY_MASK",),
        help="the devices to use, such as 0,1",
    )
    forked = "processes are always spawned, since a forked one can't use the driver its parent has opened"
    env = ("VLLM_WORKER_MULTIPROC_METHOD",)
    yield neutral("xpu.worker_method", "spawn", "", instead=forked, env=env, platform="xpu", tolerant=True)
    yield from oneccl.settings()
    yield Setting(name="xpu.emulated_devices", type="int", default=2, low=1, high=16, help="devices of --emulate")
    yield Setting(
        name="xpu.emulated_kernels",
        default="none",
        choices=tuple(libraries.EMULATED),
        help="the vendor's kernels of --emulate, answered by fakes: none, vllm (vllm_xpu_kernels and PyTorch's), ipex",
    )
    yield Setting(name="xpu.emulated_model", default="B60", help="card that --emulate emulates: A770, B50, B60, B70 …")
    yield Setting(
        name="xpu.emulated_memory",
        type="float",
        default=8.0,
        low=0.01,
        help="GiB of host memory that each device of --emulate has",
    )


@hookimpl
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    if config.platform != "xpu":
        return ()
    from lsv_xpu.checks import problems

    return problems(config)
