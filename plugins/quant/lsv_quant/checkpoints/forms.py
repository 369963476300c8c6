"""Forms in which several kinds of checkpoints store a layer: e4m3, integers, and integers used directly in products."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.static_fp8 import StaticFormat
from lsv_quant.checkpoints.stored import Blocks, CodedFormat, Held
from lsv_quant.online.int4 import Int4Linear
from lsv_quant.online.int8 import Int8Linear
from lsv_quant.tables import BYTES, E4M3, NIBBLES
from lsv_runtime.weights.codebook import ROUNDED, Codebook, to_nibbles
from lsv_runtime.weights.quantizer import Linear, LinearLayer, PerLayer, Quantizer, StoredTensor, Unquantised


def float8_format(
    name: str,
    blocks: Blocks,
    *unused: StoredTensor,
    weight: str = "weight",
    scale: str = "weight_scale",
    rounded: bool = False,
    input_bound: float = math.inf,
    input_scale: str | None = None,
) -> CodedFormat:
    """Weights in e4m3, and the scales of their blocks.

    ``rounded`` marks layers whose tokens are to be e4m3 as well, within ``input_bound``. ``input_scale`` names the
    stored scale by which activations become e4m3.
    """

    def decode(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        return Held(stored[weight].view(torch.uint8), blocks.by_output(stored[scale], layer))

    codes = StoredTensor(weight, torch.float8_e4m3fn, output_axis=0, input_axis=1)
    codebook, tensors = Codebook(E4M3, blocks.inputs), (codes, blocks.stored(scale), *unused)
    if input_scale is not None:
        return StaticFormat(name, codebook, tensors, decode, input_scale)
    marks = frozenset((ROUNDED,)) if rounded else frozenset()
    return CodedFormat(name, codebook, tensors, decode, marks, input_bound)


def unused_scale(suffix: str) -> StoredTensor:
    """A number that a checkpoint may store for a part's activations, and that nothing is computed with."""
    return StoredTensor(suffix, torch.float32, optional=True)


def int_format(
    name: str,
    bits: int,
    blocks: Blocks,
    *,
    symmetric: bool,
    weight: str = "weight",
    scale: str = "weight_scale",
    zero: str = "weight_zero_point",
) -> CodedFormat:
    """Weights of 2, 3, 4 or 8 bits in int8: ``(weight - zero) * scale``. ``symmetric`` ones have zero points of 0, or
    none stored.
    """

    def decode(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        scales, offsets = blocks.by_output(stored[scale], layer), None
        if symmetric:
            refuse_zero_points(stored, layer, zero)
        else:
            offsets = -scales * blocks.by_output(stored[zero], layer).float()
        codes = stored[weight].view(torch.uint8)
        if bits <= 4:
            return Held(to_nibbles(codes.bitwise_xor_(8).bitwise_and_(15)), scales, offsets)
        return Held(codes.bitwise_xor_(128), scales, offsets)

    codes = StoredTensor(weight, torch.int8, output_axis=0, input_axis=1)
    zeros = blocks.stored(zero, torch.int8, optional=symmetric)
    codebook = Codebook(NIBBLES if bits <= 4 else BYTES, blocks.inputs, offsets=not symmetric)
    return CodedFormat(name, codebook, (codes, blocks.stored(scale), zeros), decode)


def refuse_zero_points(
    stored: Mapping[str, torch.Tensor], layer: LinearLayer, suffix: str, what: str = "weights"
) -> None:
    """Raise ``CheckpointError`` if weights that should be symmetric have zero points other than 0."""
    if suffix in stored and bool(stored[suffix].any()):
        raise CheckpointError(
            f"{layer.tensor_name(suffix)} is not 0 everywhere, but quantization_config calls these {what} symmetric"
        )


class StoredInt8(Int8Linear):
    """Int8 weights from a checkpoint; ``scale`` float32 [outputs], ``zero`` int8 [outputs], which is 0 or absent."""

    def __init__(
        self,
        layer: LinearLayer,
        tensors: Mapping[str, nn.Parameter],
        suffixes: tuple[str, str, str],
        group: int,
    ) -> None:
        weight, scale, zero = suffixes
        super().__init__(layer, {**tensors, "weight": tensors[weight]}, group)
        self.scale, self.zero, self.zero_suffix = tensors[scale], tensors[zero], zero

    def filled(self) -> None:
        zero = self.release("zero")
        refuse_zero_points({} if zero.is_meta else {self.zero_suffix: zero}, self.layer, self.zero_suffix)
        self.keep("codes", self.release("weight"))
        self.keep("scales", self.release("scale"))


class Int8Format:
    """Symmetric int8 weights with a scale for each output; rows of activations are quantised to int8 on the fly.

    ``group`` inputs of a row share a scale, 0 for all of them.
    """

    def __init__(
        self,
        name: str,
        weight: str = "weight",
        scale: str = "weight_scale",
        zero: str = "weight_zero_point",
        group: int = 0,
    ) -> None:
        self.name, self._suffixes, self._group = name, (weight, scale, zero), group

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        weight, scale, zero = self._suffixes
        codes = StoredTensor(weight, torch.int8, output_axis=0, input_axis=1)
        return codes, Blocks().stored(scale), Blocks().stored(zero, torch.int8, optional=True)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return StoredInt8(layer, tensors, self._suffixes, self._group)


class StoredInt4(Int4Linear):
    """Int4 weights from a checkpoint: ``weight_packed`` int32 [outputs, inputs / 8], whose bytes are nibbles, and
    ``weight_scale`` float32 [outputs, groups].
    """

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], group: int) -> None:
        super().__init__(layer, {**tensors, "weight": tensors["weight_packed"]}, group)
        self.scale, self.sizes = tensors["weight_scale"], tensors["weight_shape"]

    def filled(self) -> None:
        self.release("sizes")  # they only repeat what the model knows
        packed = self.release("weight").view(torch.uint8)
        self.keep("nibbles", packed[:, : -(-self.layer.inputs // 2)].contiguous())
        self.keep("scales", self.release("scale"))


class Int4Format:
    """Symmetric int4 weights with a scale for each output and ``group`` inputs; activations are rounded by group, too.

    They are stored as compressed-tensors packs them.
    """

    def __init__(self, name: str, group: int) -> None:
        self.name, self._group = name, group

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        packed = StoredTensor("weight_packed", torch.int32, output_axis=0, input_axis=1, per_input=8)
        shape = StoredTensor("weight_shape", torch.int64, sizes=(2,), optional=True)
        return packed, shape, Blocks(1, self._group).stored("weight_scale")

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return StoredInt4(layer, tensors, self._group)


class PlainHead(PerLayer):
    """A format that leaves the output head plain."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.name, self._quantizer = quantizer.name, quantizer

    def choose(self, layer: LinearLayer) -> Quantizer:
        return Unquantised() if layer.role == "head" else self._quantizer
