"""Codes packed into int32 words, with a scale and a zero point for each output and group of inputs: what AWQ and GPTQ
share.

A weight is ``(code - zero) * scale``; codes are held relative to the middle of their range.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.patterns import Pattern
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import Held, StoredCoded
from lsv_quant.tables import BYTES, NIBBLES
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import (
    Linear,
    LinearLayer,
    PerLayer,
    Quantizer,
    Role,
    StoredTensor,
    Unquantised,
    per_part,
)


@dataclass(frozen=True, slots=True)
class Packing(ABC):
    """How a layer is packed: ``group`` inputs share a scale (0: all of them); ``symmetric``: all zero points are the
    middle.
    """

    name: ClassVar[str] = "packed"
    bits: int
    group: int
    symmetric: bool

    @property
    def per_word(self) -> int | Fraction:
        """Codes in a word; those of three bits do not end with it."""
        return 32 // self.bits if 32 % self.bits == 0 else Fraction(32, self.bits)

    @property
    def unit(self) -> int:
        """Codes that fill words, as few as can be."""
        return math.lcm(32, self.bits) // self.bits

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def codebook(self) -> Codebook:
        return Codebook(NIBBLES if self.bits <= 4 else BYTES, self.group, offsets=not self.symmetric)

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        """qweight, scales [groups, outputs], and qzeros [groups, words of outputs], which a symmetric layer may lack.

        Raises ``CheckpointError`` for a layer that does not fill its words.
        """
        for part, outputs in zip(layer.part_names, layer.outputs, strict=True):
            if outputs % self.unit or layer.inputs % self.unit:
                raise CheckpointError(
                    f"{part} has {layer.inputs} inputs and {outputs} outputs: words of {self.bits} bits a code need "
                    f"multiples of {self.unit}"
                )
        return self.words(), self._by_group("qzeros", torch.int32, self.per_word), self._by_group("scales")

    def _by_group(
        self, suffix: str, dtype: torch.dtype = torch.float32, per_output: int | Fraction = 1
    ) -> StoredTensor:
        optional = suffix == "qzeros" and self.symmetric
        if not self.group:
            return StoredTensor(suffix, dtype, 1, per_output=per_output, sizes=(1,), optional=optional)
        return StoredTensor(suffix, dtype, 1, 0, per_output, self.group, optional=optional)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return StoredCoded(layer, tensors, self.codebook(), self.decode)

    def decode(self, tensors: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        """Raises ``CheckpointError`` for tensors that contradict the config."""
        scales, offsets = tensors["scales"].T, None
        if "qzeros" in tensors:
            zeros = self.unpack_zeros(tensors["qzeros"])
            if not self.symmetric:
                offsets = (self.middle - zeros.T.float()).mul_(scales)
            elif bool((zeros != self.middle).any()):
                raise CheckpointError(
                    f"{layer.tensor_name('qzeros')}: not all zero points are {self.middle}, but quantization_config "
                    "calls the checkpoint symmetric: correct it with --hf-overrides"
                )
        return Held(self.unpack(tensors["qweight"]), scales, offsets)

    @abstractmethod
    def words(self) -> StoredTensor:
        """The form of qweight."""

    @abstractmethod
    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        """qweight -> codes as ``lsv_runtime.weights.codebook.CodedLinear`` holds them."""

    @abstractmethod
    def unpack_zeros(self, words: torch.Tensor) -> torch.Tensor:
        """qzeros -> zero points uint8 [groups, outputs]."""


Packings = Callable[[Sequence[str], Role], Packing | None]
"""How a projection is packed, given all spellings of its full name; None leaves it plain."""


class PackedWeights(PerLayer):
    """The quantizer of a checkpoint whose layers are packed as ``packings`` says."""

    def __init__(self, name: str, packings: Packings) -> None:
        self.name, self._packings = name, packings

    def choose(self, layer: LinearLayer) -> Quantizer:
        packing = per_part(layer, lambda names: self._packings(names, layer.role))
        return Unquantised() if packing is None else packing


def group_size(scheme: Scheme, key: str, default: int | None = None) -> int:
    """How many inputs share a scale: a multiple of 8, or 0 for all of them, which checkpoints write as -1."""
    scheme.pass_over(key)
    value = scheme.json.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or (value != -1 and (value < 8 or value % 8)):
        raise scheme.error(f"{key} must be -1 or a multiple of 8, got {value!r}")
    return max(value, 0)


def layer_names(scheme: Scheme, key: str) -> tuple[str, ...]:
    """Names of layers, which checkpoints give as one comma-separated string, as a list, or as nested lists."""
    scheme.pass_over(key)
    names: list[str] = []
    waiting = [scheme.json.get(key) or []]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, list):
            waiting = [*value, *waiting]
        elif isinstance(value, str):
            names.extend(name.strip().strip(".") for name in value.split(","))
        else:
            raise scheme.error(f"{key} must be names of layers, got {scheme.json[key]!r}")
    return tuple(names)


def by_layer(scheme: Scheme, key: str) -> Iterator[tuple[str, Scheme]]:
    """What a mapping says about layers, by their name or a pattern."""
    found = scheme.inner(key)
    if found is not None:
        for name, changes in found.json.items():
            yield name, found.below(name, changes or {})


def expect_plain_activations(scheme: Scheme) -> None:
    """Take AutoRound's keys of numbers: weights must be integers, and activations keep 16 bits or more."""
    scheme.choose("data_type", ("int",), "int")
    scheme.choose("act_bits", (16, 32), 16)
    scheme.pass_over("act_data_type", "act_dynamic", "act_group_size", "act_sym")


def dynamic_pattern(key: str, changes: Scheme) -> Pattern:
    """The expression of an entry of GPTQModel's ``dynamic``, which may begin with ``+:`` or ``-:``."""
    return changes.patterns.compile(key[2:] if key.startswith(("+:", "-:")) else key)
