"""``lsv-quant``: weight formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsv import hookimpl
from lsv.offers import CheckpointOffer, CommandOffer, QuantizerOffer
from lsv_quant.conversion.formats import WRITABLE
from lsv_quant.recognise import PROJECTORS, is_bitsandbytes, is_gguf, is_marlin, is_sparse

api = 2

WEIGHTS_ONLY = "activations stay as they are"
_AS_THEY_COME = (
    "activations are quantised by {} where the checkpoint wants it of int8 weights, or of fp8 weights on a device "
    "that multiplies fp8; others stay as they are"
)
BY_TOKEN = _AS_THEY_COME.format("token")
BY_SCALE = (
    "activations with scales of the checkpoint's own are rounded by them; other "
    f"{_AS_THEY_COME.format('token or group')}"
)
BY_BOUND = (
    "activations become fp8 by token, within the checkpoint's bound, where the device multiplies it; elsewhere they "
    "stay as they are"
)
BY_SIZE = "groups of 32 where a model's states have at most 1,024 features, of 64 elsewhere"
FLOAT8 = (
    "activations become fp8 by token where the device multiplies it, of a checkpoint in fp8 only if it wants that, and "
    "by the checkpoint's scales on every device; elsewhere they stay as they are"
)


_FITTED = "lsv_quant.conversion.prepared:prepare"


def _method(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda config: config.get("quant_method") in names


@hookimpl
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    yield from _checkpoints()
    yield from _integers()
    yield from _floats()


def _integers() -> Iterable[QuantizerOffer]:
    """Formats of whole numbers that are made of plain weights."""
    yield QuantizerOffer("int8", "lsv_quant.online.int8:make", online=True)
    yield QuantizerOffer(
        "sym_int4",
        "lsv_quant.online.int4:make_by_size",
        online=True,
        note=BY_SIZE,
        costs=22,
        calibrate=_FITTED,
    )
    for group, percent in ((32, 22), (64, 26), (128, 33)):
        yield QuantizerOffer(
            f"sym_int4_g{group}",
            f"lsv_quant.online.int4:make_{group}",
            online=True,
            costs=percent,
            calibrate=_FITTED,
        )
    yield QuantizerOffer(
        "asym_int4",
        "lsv_quant.online.online_coded:make_asym_int4_64",
        online=True,
        note=WEIGHTS_ONLY,
        costs=27,
    )
    yield QuantizerOffer(
        "asym_int4_g32", "lsv_quant.online.online_coded:make_asym_int4_32", online=True, note=WEIGHTS_ONLY
    )
    yield QuantizerOffer(
        "asym_int4_g128",
        "lsv_quant.online.online_coded:make_asym_int4_128",
        online=True,
        note=WEIGHTS_ONLY,
        costs=44,
    )
    yield QuantizerOffer(
        "int8_weight_only", "lsv_quant.online.online_coded:make_int8_weight_only", online=True, note=WEIGHTS_ONLY
    )
    yield QuantizerOffer(
        "experts_int8",
        "lsv_quant.online.online_coded:make_experts_int8",
        online=True,
        experts=True,
        note=f"of experts alone; {WEIGHTS_ONLY}",
    )


def _floats() -> Iterable[QuantizerOffer]:
    """Formats of small floats and of tables that are made of plain weights, or read from checkpoints as well."""
    yield QuantizerOffer(
        "mxfp4", "lsv_quant.checkpoints.mxfp4:make", _method("mxfp4"), online=True, note=WEIGHTS_ONLY, costs=45
    )
    yield QuantizerOffer("nf4", "lsv_quant.online.online_coded:make_nf4", online=True, note=WEIGHTS_ONLY, costs=23)
    yield QuantizerOffer(
        "bitsandbytes",
        "lsv_quant.checkpoints.bitsandbytes:make",
        _method("bitsandbytes"),
        online=True,
        note=WEIGHTS_ONLY,
        costs=23,
    )
    yield QuantizerOffer("fp8", "lsv_quant.fp8:make", _method("fp8"), online=True, note=FLOAT8)
    yield QuantizerOffer("fp8_tensor", "lsv_quant.fp8:make_tensor", online=True, note=FLOAT8)


def _checkpoints() -> Iterable[QuantizerOffer]:
    """Formats that are only read."""
    yield QuantizerOffer(
        "awq",
        "lsv_quant.checkpoints.awq:make",
        _method("awq"),
        aliases=("awq_marlin", "awq_hpu"),
        file="quant_config.json",
    )
    yield QuantizerOffer(
        "gptq",
        "lsv_quant.checkpoints.gptq:make",
        _method("gptq"),
        aliases=("gptq_marlin", "gptq_marlin_24", "marlin", "gptq_hpu"),
        file="quantize_config.json",
    )
    yield QuantizerOffer(
        "auto-round",
        "lsv_quant.checkpoints.autoround:make",
        _method("auto-round", "intel/auto-round"),
        aliases=("auto_round",),
    )
    yield QuantizerOffer("gguf", "lsv_quant.gguf.quantizer:make", _method("gguf"), note=WEIGHTS_ONLY)
    yield QuantizerOffer(
        "compressed-tensors",
        "lsv_quant.checkpoints.compressed_tensors:make",
        _method("compressed-tensors"),
        note=BY_SCALE,
    )
    yield QuantizerOffer("torchao", "lsv_quant.checkpoints.torchao:make", _method("torchao"), note=BY_TOKEN)
    yield QuantizerOffer(
        "fbgemm_fp8", "lsv_quant.checkpoints.fp8_checkpoint:make_fbgemm", _method("fbgemm_fp8"), note=BY_BOUND
    )


@hookimpl
def lsv_checkpoints() -> Iterable[CheckpointOffer]:
    yield CheckpointOffer("bitsandbytes", is_bitsandbytes, "lsv_quant.checkpoints.bitsandbytes_source:open_source")
    yield CheckpointOffer("marlin", is_marlin, "lsv_quant.checkpoints.marlin_source:open_source")
    yield CheckpointOffer("sparse", is_sparse, "lsv_quant.checkpoints.sparse_source:open_source")
    yield CheckpointOffer(
        "gguf",
        is_gguf,
        "lsv_quant.gguf.source:open_source",
        prepare="lsv_quant.gguf.prepare:prepare",
        single_files="*.gguf",
        beside=PROJECTORS,
    )


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer(
        "quantize",
        "lsv_quant.conversion.command:run",
        f"write a checkpoint in a weight format: {', '.join(WRITABLE)}; --quantization-calibration FILE fits sym_int4 "
        "and its forms to a text",
    )
