"""The forms in which compressed-tensors stores a layer, depending on what its config says about weights and
activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import torch
from torch.nn import functional

from lsv_quant.checkpoints.forms import Int4Format, Int8Format, float8_format, int_format, unused_scale
from lsv_quant.checkpoints.gptq import GptqPacking, spread
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.static_int8 import StaticInt8Format
from lsv_quant.checkpoints.stored import Blocks, CodedFormat, Held, in_order, order_of_groups
from lsv_quant.online.int4 import GROUPS as INT4_GROUPS
from lsv_quant.online.int8 import KERNEL_UNIT
from lsv_quant.tables import BYTES, E2M1, E4M3, NIBBLES
from lsv_runtime.weights.codebook import Codebook, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer, Quantizer, StoredTensor

NAME = "compressed-tensors"
Tensors = Mapping[str, torch.Tensor]
_CHUNK = 1 << 20
"""Codes unpacked at a time."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How weights or activations are quantised. ``where`` is its place in config.json, for messages."""

    where: Scheme
    bits: int
    type: str
    strategy: str
    symmetric: bool
    dynamic: bool | str
    group: int
    block: tuple[int, ...] | None
    ordered: bool
    dense: bool
    """Whether packed codes run on from one word to the next, where a word does not hold a whole number of them."""

    @property
    def per_word(self) -> int | Fraction:
        """Packed codes in 32 bits."""
        return Fraction(32, self.bits) if self.dense and 32 % self.bits else 32 // self.bits

    def blocks(self) -> Blocks:
        """The weights that share a scale."""
        if self.strategy == "block" and self.block is not None:
            return Blocks(*self.block)
        if self.strategy in ("group", "tensor_group") and self.group:
            return Blocks(1, self.group)
        if self.strategy in ("tensor", "channel"):
            return Blocks()
        raise self.where.error(
            f"strategy {self.strategy!r} can't be read without the size it needs, or not for weights"
        )

    def expect(self, what: str, **wanted: object) -> None:
        """Raise ``CheckpointError`` naming the first number that differs."""
        for key, value in wanted.items():
            if getattr(self, key) != value:
                raise self.where.error(f"{key} is {getattr(self, key)!r}; {what} must have {value!r}")


def make_float(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    """``weight`` in e4m3, ``weight_scale`` for a tensor, an output, a group or a block; ``input_scale`` of activations
    that become e4m3 by one scale for all.
    """
    weights.expect("weights of type float", bits=8, symmetric=True, ordered=False)
    blocks = weights.blocks()
    if inputs is not None and inputs.type == "float" and inputs.bits == 8 and inputs.dynamic is False:
        inputs.expect("static activations", strategy="tensor", symmetric=True)
        return float8_format(NAME, blocks, input_scale="input_scale")
    return float8_format(NAME, blocks, unused_scale("input_scale"), rounded=_by_token(inputs, blocks))


def _by_token(inputs: Numbers | None, blocks: Blocks) -> bool:
    """Whether activations are to be rounded to e4m3 as they come, a token with as many scales as an output has."""
    if inputs is None or (inputs.type, inputs.bits, inputs.symmetric, inputs.dynamic) != ("float", 8, True, True):
        return False
    if inputs.strategy == "group":
        return inputs.group == blocks.inputs
    return inputs.strategy == "token" and not blocks.inputs


def make_int(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    """``weight`` int8 (also for 4-bit codes), ``weight_scale`` and optionally ``weight_zero_point``; ``input_scale``,
    and ``input_zero_point``, of activations that are rounded by one scale for all.

    Activations that are rounded as they come have a scale for each token, or for each group of its inputs.
    """
    weights.expect("weights in int8", ordered=False)
    blocks = weights.blocks()
    format = int_format(NAME, weights.bits, blocks, symmetric=weights.symmetric)
    if inputs is None:
        return format
    inputs.expect("activations of int8 weights", type="int", bits=8)
    if inputs.dynamic is False:
        inputs.expect("static activations", strategy="tensor")
        return StaticInt8Format(format, symmetric=inputs.symmetric)
    by_output = weights.bits == 8 and weights.symmetric and blocks == Blocks()
    inputs.expect("activations of int8 weights", dynamic=True, symmetric=True)
    if inputs.strategy == "group":
        return _make_int8_by_group(weights, inputs, by_output)
    inputs.expect("activations of int8 weights", strategy="token")
    return Int8Format(NAME) if by_output else format


def _make_int8_by_group(weights: Numbers, inputs: Numbers, by_output: bool) -> Quantizer:
    if not by_output:
        raise weights.where.error(
            "activations rounded by group need symmetric weights of 8 bits, with a scale for each output or one for all"
        )
    if not inputs.group or inputs.group % KERNEL_UNIT:
        raise inputs.where.error(
            f"group_size is {inputs.group or None!r}; activations rounded by group need a multiple of {KERNEL_UNIT}"
        )
    return Int8Format(NAME, group=inputs.group)


def make_packed(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    """``weight_packed`` int32: codes of consecutive inputs from the low end, shifted by half their range; zero points
    are shifted and packed likewise along the outputs. ``weight_shape`` only repeats what the model knows.

    Codes of two and three bits are held in four.
    """
    weights.expect("packed weights", type="int")
    blocks, per_word = weights.blocks(), weights.per_word
    if _rounds_by_group(weights, inputs):
        return Int4Format(NAME, weights.group)
    tensors = [
        StoredTensor("weight_packed", torch.int32, output_axis=0, input_axis=1, per_input=per_word),
        StoredTensor("weight_shape", torch.int64, sizes=(2,), optional=True),
        blocks.stored("weight_scale"),
    ]
    if not weights.symmetric:
        weights.expect("zero points of packed weights", strategy="group" if blocks.inputs else "channel")
        axis = 1 if blocks.inputs else None
        tensors.append(StoredTensor("weight_zero_point", torch.int32, 0, axis, per_word, blocks.inputs))
    if weights.ordered:
        tensors.append(StoredTensor("weight_g_idx", torch.int32, input_axis=0, optional=True))
    table = NIBBLES if weights.bits <= 4 else BYTES
    apart = weights.ordered and blocks.inputs > 0  # a single group has all inputs, however they lie
    codebook = Codebook(table, blocks.inputs, offsets=not weights.symmetric, ordered=apart)
    return CodedFormat(NAME, codebook, tensors, partial(_decode_packed, weights, codebook))


def _rounds_by_group(weights: Numbers, inputs: Numbers | None) -> bool:
    """Whether activations are to be rounded to int8 as they come, with a scale for each group of inputs that weights
    have one for.
    """
    if inputs is None or (inputs.type, inputs.bits, inputs.symmetric, inputs.dynamic) != ("int", 8, True, True):
        return False
    grouped = weights.strategy == inputs.strategy == "group" and weights.group == inputs.group
    return grouped and weights.group in INT4_GROUPS and weights.bits == 4 and weights.symmetric and not weights.ordered


def _decode_packed(weights: Numbers, codebook: Codebook, stored: Tensors, layer: LinearLayer) -> Held:
    scales, offsets = weights.blocks().by_output(stored["weight_scale"], layer), None
    if codebook.offsets:
        zeros = _unpack_outputs(stored["weight_zero_point"], weights, layer)
        offsets = scales * ((1 << weights.bits - 1) - zeros.float()).reshape(scales.shape)
    codes = _hold_codes(stored["weight_packed"], weights, layer.inputs)
    if not codebook.ordered:
        return Held(codes, scales, offsets)
    order = order_of_groups(stored.get("weight_g_idx"), layer, codebook.group, "weight_g_idx").to(codes.device)
    return Held(in_order(codes, order, codebook.bits), scales, offsets, order.int())


def _hold_codes(words: torch.Tensor, weights: Numbers, inputs: int) -> torch.Tensor:
    """Words int32 [outputs, words] -> codes uint8 as ``CodedLinear`` holds them."""
    if weights.bits >= 4:
        return words.view(torch.uint8)[:, : -(-inputs * weights.bits // 8)]
    lift = (1 << 3) - (1 << weights.bits - 1)  # to be as far from the middle of four bits
    rows = words.split(max(1, _CHUNK // inputs))
    return torch.cat([to_nibbles(_unpack(some, weights)[:, :inputs] + lift) for some in rows])


def _unpack_outputs(words: torch.Tensor, weights: Numbers, layer: LinearLayer) -> torch.Tensor:
    """Words int32 [words, ...] of consecutive outputs, those of fused parts one after another -> [outputs, ...]."""
    parts = torch.split(words, [-(-outputs // weights.per_word) for outputs in layer.outputs])
    unpacked = (_unpack(part.movedim(0, -1).contiguous(), weights).movedim(-1, 0) for part in parts)
    return torch.cat([part[:outputs] for part, outputs in zip(unpacked, layer.outputs, strict=True)])


def _unpack(words: torch.Tensor, weights: Numbers) -> torch.Tensor:
    """Words int32 [..., words] -> the codes in them, from the low end, uint8 [..., at least as many as there are]."""
    if isinstance(weights.per_word, int):
        shifts = torch.arange(weights.per_word, device=words.device) * weights.bits
        return (words[..., None] >> shifts & (1 << weights.bits) - 1).to(torch.uint8).flatten(-2)
    packed = words.view(torch.uint8)
    return spread(functional.pad(packed, (0, -packed.shape[-1] % weights.bits)), weights.bits)


def make_marlin(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    """``weight_packed``, ``scale_packed`` and ``meta``, which ``marlin_source`` turns into what GPTQ stores."""
    weights.expect("marlin-24", type="int", symmetric=True, ordered=False)
    if weights.bits not in (4, 8):
        raise weights.where.error(f"num_bits is {weights.bits}; marlin-24 must have 4 or 8")
    return GptqPacking(weights.bits, weights.blocks().inputs, True)


def make_nvfp4(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    """``weight_packed`` uint8, ``weight_scale`` in e4m3, and ``weight_global_scale``, by which scales are divided."""
    weights.expect("nvfp4-pack-quantized", type="float", bits=4, symmetric=True, strategy="tensor_group", group=16)
    whole = partial(StoredTensor, dtype=torch.float32)
    scale = weights.blocks().stored("weight_scale", torch.float8_e4m3fn)
    tensors = (_PAIRS, scale, whole("weight_global_scale"), whole("input_global_scale", optional=True))
    return CodedFormat(NAME, Codebook(E2M1, 16), tensors, _decode_nvfp4)


_PAIRS = StoredTensor("weight_packed", torch.uint8, output_axis=0, input_axis=1, per_input=2)


def _decode_nvfp4(stored: Tensors, layer: LinearLayer) -> Held:
    divisors = stored["weight_global_scale"].reshape(-1, 1)
    widths = torch.tensor(layer.outputs, device=divisors.device)
    return Held(stored["weight_packed"], stored["weight_scale"].float() / divisors.repeat_interleave(widths, dim=0))


def _make_mx(
    name: str, bits: int, table: tuple[float, ...], codes: StoredTensor, weights: Numbers, inputs: Numbers | None
) -> Quantizer:
    """OCP Microscaling Formats 1.0: the scale of 32 weights is a power of two, stored as its exponent plus 127."""
    weights.expect(name, type="float", bits=bits, symmetric=True, strategy="group", group=32)
    tensors = (codes, weights.blocks().stored("weight_scale", torch.uint8))

    def decode(stored: Tensors, layer: LinearLayer) -> Held:
        exponents = stored["weight_scale"].int() - 127
        scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
        return Held(stored[codes.suffix].view(torch.uint8), scales)

    return CodedFormat(NAME, Codebook(table, 32), tensors, decode)


Make = Callable[[Numbers, Numbers | None], Quantizer]
make_mxfp4: Make = partial(_make_mx, "mxfp4-pack-quantized", 4, E2M1, _PAIRS)
make_mxfp8: Make = partial(
    _make_mx, "mxfp8-quantized", 8, E4M3, StoredTensor("weight", torch.float8_e4m3fn, output_axis=0, input_axis=1)
)
