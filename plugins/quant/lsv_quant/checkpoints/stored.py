"""What formats whose checkpoints hold codes and scales share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.codebook import Codebook, CodedLinear, from_nibbles, to_nibbles
from lsv_runtime.weights.quantizer import Linear, LinearLayer, StoredTensor

_CHUNK = 1 << 18
"""Codes reordered at a time."""


class Held(NamedTuple):
    """The arguments of ``CodedLinear.hold``."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None
    order: torch.Tensor | None = None


Decode = Callable[[Mapping[str, torch.Tensor], LinearLayer], Held]
"""(stored tensors by suffix, without those that a checkpoint lacks; their layer) -> what the layer holds."""


class StoredCoded(CodedLinear):
    """Takes what a checkpoint stores, and turns it into its own form once it is filled."""

    def __init__(
        self,
        layer: LinearLayer,
        tensors: Mapping[str, nn.Parameter],
        codebook: Codebook,
        decode: Decode,
        marks: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(layer, codebook, tensors.get("bias"), marks)
        self.decode = decode
        self.suffixes = tuple(suffix for suffix in tensors if suffix != "bias")
        for suffix in self.suffixes:
            self.register_parameter(f"stored_{suffix}", tensors[suffix])

    def filled(self) -> None:
        self.hold(*self.decode(self.release_stored(), self.layer))

    def release_stored(self) -> dict[str, torch.Tensor]:
        """Hand out the stored tensors by suffix, without those that the checkpoint lacks."""
        stored = {suffix: self.release(f"stored_{suffix}") for suffix in self.suffixes}
        return {suffix: tensor for suffix, tensor in stored.items() if not tensor.is_meta}


class CodedFormat:
    """A quantizer with one form: every layer stores ``tensors``, and has what ``CodedLinear`` calls ``marks`` and
    ``input_bound``.
    """

    def __init__(
        self,
        name: str,
        codebook: Codebook,
        tensors: Sequence[StoredTensor],
        decode: Decode,
        marks: frozenset[str] = frozenset(),
        input_bound: float = math.inf,
    ) -> None:
        self.name, self.codebook, self.decode = name, codebook, decode
        self._tensors, self._marks, self._input_bound = tuple(tensors), marks, input_bound

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return self._tensors

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        made = StoredCoded(layer, tensors, self.codebook, self.decode, self._marks)
        made.input_bound = self._input_bound
        return made


@dataclass(frozen=True, slots=True)
class Blocks:
    """The weights that share a scale: a block of ``outputs`` by ``inputs``, 0 for all inputs.

    The only scale of a whole layer counts as one per output, of which a single number is stored.
    """

    outputs: int = 1
    inputs: int = 0

    def stored(self, suffix: str, dtype: torch.dtype = torch.float32, *, optional: bool = False) -> StoredTensor:
        """Scales, or zero points, [outputs] or [blocks, groups]."""
        if self.inputs == 0:
            return StoredTensor(suffix, dtype, output_axis=0, uniform=True, optional=optional)
        return StoredTensor(suffix, dtype, 0, 1, self.outputs, self.inputs, optional=optional)

    def by_output(self, scales: torch.Tensor, layer: LinearLayer) -> torch.Tensor:
        """Scales as stored, those of fused parts one after another -> [outputs, groups]."""
        if self.inputs == 0:
            return scales[:, None]
        if self.outputs == 1:
            return scales
        parts = torch.split(scales, [-(-outputs // self.outputs) for outputs in layer.outputs])
        spread = (part.repeat_interleave(self.outputs, dim=0) for part in parts)
        return torch.cat([part[:outputs] for part, outputs in zip(spread, layer.outputs, strict=True)])


def order_of_groups(found: torch.Tensor | None, layer: LinearLayer, group: int, suffix: str) -> torch.Tensor:
    """Inputs int64 [inputs] sorted by group.

    ``found`` int32 [inputs], or one row for each of several parts, are the groups they belong to; None: groups are
    consecutive inputs. Raises ``CheckpointError`` if parts differ, or if a group does not have all of its ``group``
    inputs on this rank.
    """
    if found is None or bool((found < 0).all()):
        return torch.arange(layer.inputs)
    name = layer.tensor_name(suffix)
    groups = found.reshape(-1, layer.inputs)[0]
    if bool((found != groups).any()):
        raise CheckpointError(f"{name} differ, and all are computed as one layer: they must group inputs alike")
    order = groups.argsort(stable=True)
    first = layer.reads[0] if layer.reads else 0
    in_a_row = (torch.arange(layer.inputs, device=groups.device) + first) // group
    if not torch.equal(groups[order].long(), in_a_row):
        why = "and can't be split over ranks: use tensor_parallel_size 1" if layer.reads else f"but not {group} each"
        raise CheckpointError(f"{name}: the inputs of a group lie apart, {why}")
    return order


def in_order(codes: torch.Tensor, order: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes uint8 [outputs, ceil(inputs * bits / 8)] with reordered columns, in the same storage."""
    for rows in torch.split(codes, max(1, _CHUNK // len(order))):
        if bits == 4:
            rows.copy_(to_nibbles(from_nibbles(rows).gather(1, order.expand(len(rows), -1))))
        else:
            rows.copy_(rows.gather(1, order.expand(len(rows), -1)))
    return codes
