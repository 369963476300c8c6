"""Triton kernels, one source for every kind of GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lsv import hookimpl
from lsv.config import EngineConfig
from lsv.offers import AttentionOffer, KernelOffer, lazy
from lsv.settings import Setting

api = 2

_FLOATS = lazy("lsv_triton.availability:why_not_floats")
_WEIGHTS = lazy("lsv_triton.gemm.weights:why_not_weights")
_ROUNDED = lazy("lsv_triton.gemm.weights:why_not_rounded")
_TOGETHER = lazy("lsv_triton.gemm.moe:why_not_experts")
_TOGETHER_ROUNDED = lazy("lsv_triton.gemm.fp8:why_not_rounded_experts")

PLATFORMS = ("cuda", "rocm", "xpu")
_BLOCK_SIZES = (64, 16, 32, 128, 256)


def _missing() -> str | None:
    """None, or what Triton lacks to run here; torch is not asked, for it may not be imported yet."""
    from lsv_triton.availability import find_missing

    missing = find_missing()
    if missing is not None:
        return missing
    import triton

    nodes = (*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev/dri").glob("renderD*"), Path("/dev/dxg"), Path("/dev/kfd"))
    if triton.knobs.runtime.interpret or any(node.exists() for node in nodes):
        return None
    return "a GPU, and Triton's interpreter (TRITON_INTERPRET=1) is not on"


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    triton = "lsv_triton.attention.backend:TritonAttention"
    names = ("TRITON_ATTN", "TRITON_ATTN_VLLM_V1")
    yield AttentionOffer(
        "triton-paged", triton, _BLOCK_SIZES, PLATFORMS, missing=_missing, aliases=names, row_invariant=True
    )
    yield AttentionOffer("torch-paged", "lsv_triton.attention.torch_backend:TorchAttention", _BLOCK_SIZES)


def _interpreted(config: EngineConfig) -> str | None:
    """An emulated platform runs plain torch; in the interpreter a launch takes a tenth of a second."""
    if config.emulate and not config.options.get("triton.interpret"):
        return "the platform is emulated; --triton-interpret runs kernels in Triton's interpreter"
    return None


def _invariant(config: EngineConfig) -> str | None:
    if not config.options.get("triton.row_invariant"):
        return (
            "torch's own product is faster; --triton-row-invariant takes this one, whose rows do not depend on others"
        )
    return _interpreted(config)


def _exact(config: EngineConfig) -> str | None:
    if not config.options.get("triton.fp8_activations", True):
        return "--no-triton-fp8-activations leaves activations as they are"
    return _interpreted(config)


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="triton.interpret",
        type="bool",
        default=False,
        help="run kernels in Triton's interpreter on emulated platforms (with TRITON_INTERPRET=1): slow, for tests",
    )
    yield Setting(
        name="triton.row_invariant",
        type="bool",
        default=False,
        help="plain linear layers through a kernel whose rows have the same bits in any batch",
    )
    yield Setting(
        name="triton.fp8_activations",
        type="bool",
        default=True,
        help="round activations to fp8 by token for fp8 weights meant for it, where the GPU multiplies fp8 (W8A8)",
    )


@hookimpl
def lsv_kernels() -> Iterable[KernelOffer]:
    for platform in PLATFORMS:
        for op, load, supports in _KERNELS:
            yield KernelOffer(
                op,
                platform,
                load,
                supports,
                row_invariant=True,
                adapters=op == "layer",
                unwanted=_interpreted,
                looks_up=op in ("linear.coded", "linear.int8"),
            )
        plain = "lsv_triton.gemm.linear:TritonLinear"
        yield KernelOffer("linear", platform, plain, _WEIGHTS, row_invariant=True, rank=-1, unwanted=_invariant)
        for op, load, supports in _FP8:
            yield KernelOffer(op, platform, load, supports, row_invariant=True, rank=1, unwanted=_exact)


_EXPERTS = ("moe", "moe.spread", "moe.exchanged")
_FP8 = (
    ("linear.coded", "lsv_triton.gemm.fp8:Fp8Linear", _ROUNDED),
    *((op, "lsv_triton.gemm.fp8:Fp8Experts", _TOGETHER_ROUNDED) for op in _EXPERTS),
)
_WEIGHT_OPS = ("linear.coded", "linear.coded_static", "linear.int8", "linear.int4")
_GATED = (
    "silu", "gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "clamped_swiglu",
)  # fmt: skip
_KERNELS = (
    ("layer", "lsv_triton.layers.layer:FusedLayer", _FLOATS),
    ("rms_norm", "lsv_triton.layers.norm:RmsNorm", _FLOATS),
    ("rope", "lsv_triton.layers.rope:Rotate", _FLOATS),
    ("lora.add", "lsv_triton.layers.lora:AddAdapters", _FLOATS),
    ("sum_ranks", "lsv_triton.rank_sum:SumRanks", _FLOATS),
    ("sample", "lsv_triton.sampling.ops:DeviceChoose", _FLOATS),
    ("logprobs", "lsv_triton.sampling.ops:DeviceDescribe", _FLOATS),
    *((op, "lsv_triton.gemm.linear:TritonLinear", _WEIGHTS) for op in _WEIGHT_OPS),
    *((op, "lsv_triton.gemm.moe:GroupedExperts", _TOGETHER) for op in _EXPERTS),
    *((f"{name}_mul", "lsv_triton.layers.activation:GatedProduct", _FLOATS) for name in _GATED),
)
