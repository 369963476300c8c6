"""torchao checkpoints in safetensors, where a weight consists of adjacent tensors: ``_weight_qdata``, ``_weight_scale``
and others (torchao's ``prototype.safetensors`` and ``quantization.quant_api``).

Int8 weights whose activations are to be quantised per token run in int8 (W8A8); of weights in e4m3, kernels may round
activations likewise where the config plans it. All other activations stay as they are.
Pickled checkpoints, which older versions of its configs describe, can't be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from lsv_quant.checkpoints.forms import Int8Format, PlainHead, float8_format, int_format
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import Blocks, CodedFormat, Held
from lsv_quant.tables import NIBBLES
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import LinearLayer, Quantizer, StoredTensor, WithIgnored

NAME = "torchao"
_SUFFIXES = {"weight": "_weight_qdata", "scale": "_weight_scale"}
_ZERO = "_weight_zero_point"
_INDIFFERENT = ("set_inductor_config", "kernel_preference", "mm_config", "alg_id", "scale_dtype", "weight_scale_dtype")
"""Fields of torchao's configs that choose how to make or run a weight, not what it means; ignored."""
_VERSION = 2
"""The version of its configs from which on weights are plain tensors."""


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    """The quantizer of a checkpoint. Raises ``CheckpointError`` for a config that can't be honoured."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", (NAME,))
    scheme.choose("include_input_output_embeddings", (False,), False)
    scheme.choose("untie_embedding_weights", (False,), False)
    plain = scheme.names("modules_to_not_convert")
    types = scheme.inner("quant_type")
    config = types and types.inner("default")
    if types is None or config is None:
        raise scheme.error("quant_type has no default, so nothing says how weights are stored")
    kind = config.choose("_type", tuple(_FORMS))
    config.choose("_version", (_VERSION,), 1)
    fields = config.inner("_data") or Scheme({}, f"{config.where}._data")
    quantizer = _FORMS[kind](fields)
    fields.pass_over(*_INDIFFERENT)
    for part in (fields, config, types, scheme):
        part.finish()
    # who lists nothing leaves the head plain
    listed = quantization_config.get("modules_to_not_convert") is not None
    return WithIgnored(quantizer if listed else PlainHead(quantizer), plain)


def _word(fields: Scheme, key: str, allowed: tuple[str, ...], default: str) -> str:
    """The name of a dtype or of an enum's member."""
    found = fields.inner(key)
    if found is None:
        return default
    found.pass_over("_type", "_version")
    return found.choose("_data", allowed)


def _blocks(
    fields: Scheme, key: str, kinds: tuple[str, ...] = ("PerRow", "PerTensor", "PerAxis", "PerGroup")
) -> Blocks:
    """The weights that share a scale; of a pair, the first is for activations."""
    value = fields.json.get(key)
    fields.pass_over(key)
    if value is None:
        return Blocks()
    found = Scheme(value[-1] if isinstance(value, list) and value else value, f"{fields.where}.{key}")
    kind = found.choose("_type", kinds)
    sizes = found.inner("_data") or Scheme({}, found.where)
    sizes.choose("axis", (0,), 0)
    sizes.choose("dim", (-1, 1), -1)
    group = sizes.count("group_size")
    if kind == "PerGroup" and group is None:
        raise sizes.error("group_size is missing")
    found.pass_over("_version")
    sizes.finish()
    found.finish()
    return Blocks(1, group or 0)


def _int8(fields: Scheme) -> Quantizer:
    fields.choose("group_size", (0,), 0)  # that of the first version
    return int_format(NAME, 8, _blocks(fields, "granularity"), symmetric=True, **_SUFFIXES, zero=_ZERO)


def _int8_by_token(fields: Scheme) -> Quantizer:
    _word(fields, "act_mapping_type", ("SYMMETRIC",), "SYMMETRIC")
    fields.choose("weight_only_decode", (False,), False)
    fields.choose("reduce_range", (False,), False)
    _blocks(fields, "granularity", ("PerRow",))
    return Int8Format(NAME, **_SUFFIXES, zero=_ZERO)


def _float8(fields: Scheme, *, dynamic: bool = False) -> Quantizer:
    """Bounds of activations are not honoured, so those that have any stay as they are."""
    bounded = any(fields.json.get(f"activation_value_{bound}") is not None for bound in ("lb", "ub"))
    for key in ("weight_dtype", "activation_dtype"):
        _word(fields, key, ("float8_e4m3fn",), "float8_e4m3fn")
    _word(fields, "packing_format", ("PLAIN",), "PLAIN")
    fields.pass_over("activation_value_lb", "activation_value_ub")
    blocks = _blocks(fields, "granularity", ("PerRow", "PerTensor"))
    return float8_format(NAME, blocks, **_SUFFIXES, rounded=dynamic and not bounded)


def _intx(prefix: str, fields: Scheme) -> Quantizer:
    dtype = _word(fields, "weight_dtype", ("int4", "int8"), "int8")
    mapping = _word(
        fields, f"{prefix}mapping_type", ("SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"), "SYMMETRIC"
    )
    _word(fields, "act_mapping_type", ("SYMMETRIC", "ASYMMETRIC"), "SYMMETRIC")
    _word(fields, "intx_packing_format", ("UNPACKED_TO_INT8",), "UNPACKED_TO_INT8")
    fields.pass_over("intx_choose_qparams_algorithm")
    blocks, symmetric = _blocks(fields, f"{prefix}granularity"), mapping != "ASYMMETRIC"
    return int_format(NAME, int(dtype.removeprefix("int")), blocks, symmetric=symmetric, **_SUFFIXES, zero=_ZERO)


def _int4(fields: Scheme) -> Quantizer:
    """Two signed codes in a byte, the even input's in the low half: a weight is ``code * scale + zero_point``."""
    _word(fields, "int4_packing_format", ("PLAIN",), "PLAIN")
    fields.pass_over("int4_choose_qparams_algorithm", "int4_tile_packed_ntile")
    group = fields.count("group_size", 128) or 128
    tensors = (
        StoredTensor(_SUFFIXES["weight"], torch.int8, output_axis=0, input_axis=1, per_input=2),
        StoredTensor(_SUFFIXES["scale"], torch.float32, output_axis=1, input_axis=0, per_input=group),
        StoredTensor(_ZERO, torch.float32, output_axis=1, input_axis=0, per_input=group),
    )
    return CodedFormat(NAME, Codebook(NIBBLES, group, offsets=True), tensors, _decode_int4)


def _decode_int4(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
    codes = stored[_SUFFIXES["weight"]].view(torch.uint8).bitwise_xor_(0x88)
    return Held(codes, stored[_SUFFIXES["scale"]].T, stored[_ZERO].T)


_FORMS: Mapping[str, Callable[[Scheme], Quantizer]] = {
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8_by_token,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": partial(_float8, dynamic=True),
    "IntxWeightOnlyConfig": partial(_intx, ""),
    "Int8DynamicActivationIntxWeightConfig": partial(_intx, "weight_"),
    "Int4WeightOnlyConfig": _int4,
}
