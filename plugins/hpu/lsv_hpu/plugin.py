"""``hpu``: Intel Gaudi."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.capabilities import DeviceInfo
from lsv.config import EngineConfig
from lsv.offers import AttentionOffer, KernelOffer, OpSpec, PlatformOffer, QuantizerOffer, lazy
from lsv.settings import Setting
from lsv_hpu import settings
from lsv_hpu.devices import Prober
from lsv_hpu.neural_compressor import files as inc

api = 2

_MIXED = lazy("lsv_hpu.kernels:why_not_mixed")
_ON_HOST = lazy("lsv_hpu.sampling:why_not_on_host")
_FP8 = lazy("lsv_hpu.formats.fp8:why_not_fp8")
_INT4 = lazy("lsv_hpu.formats.int4:why_not_int4")


def probe() -> tuple[DeviceInfo, ...]:
    return Prober().devices()


def explain() -> str:
    return Prober().explain()


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    yield PlatformOffer(
        "hpu",
        "lsv_hpu.platform:HpuPlatform",
        probe,
        rank=80,
        explain=explain,
        emulation="lsv_hpu.emulation.platform:EmulatedHpu",
        tools=(("hl-smi",),),
        resource="HPU",
    )


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    yield AttentionOffer(
        "hpu-flat", "lsv_hpu.attention.backend:FlatAttention", (128, 16, 32, 64, 256), ("hpu",), layout="padded"
    )


def _any(spec: OpSpec) -> str | None:
    return None


@hookimpl
def lsv_kernels() -> Iterable[KernelOffer]:
    yield KernelOffer("rms_norm", "hpu", "lsv_hpu.kernels:RmsNorm", _any)
    for op in ("moe", "moe.spread", "moe.exchanged"):
        yield KernelOffer(op, "hpu", "lsv_hpu.kernels:MixedExperts", _MIXED, rank=1)
        yield KernelOffer(op, "hpu", "lsv_hpu.kernels:EveryExpert", _any)
    yield KernelOffer("linear.coded", "hpu", "lsv_hpu.formats.fp8:DynamicFp8", _FP8)
    yield KernelOffer("linear.coded_static", "hpu", "lsv_hpu.formats.fp8:StaticFp8", _FP8)
    yield KernelOffer("linear.coded", "hpu", "lsv_hpu.formats.int4:EvenInt4", _INT4, looks_up=True)
    yield KernelOffer("sample", "hpu", "lsv_hpu.sampling:HostChoose", _ON_HOST, row_invariant=True)
    yield KernelOffer("logprobs", "hpu", "lsv_hpu.sampling:HostDescribe", _ON_HOST, row_invariant=True)
    yield KernelOffer("linear.fp8_static", "hpu", "lsv_hpu.formats.neural_compressor:StaticFp8Gemm", _any)


@hookimpl
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    note = "weights and activations in fp8, with scales from measurements"
    yield QuantizerOffer("inc", "lsv_hpu.formats.neural_compressor:make", online=True, note=note)


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield from settings.declare()


@hookimpl
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    if config.platform != "hpu":
        return ()
    return (*settings.find_problems(config), *inc.find_problems(config))
