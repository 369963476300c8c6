"""GPTQ checkpoints as AutoGPTQ and GPTQModel write them (Frantar et al. 2022; their config and qlinear modules).

qweight int32 [inputs / n, outputs] and qzeros int32 [groups, outputs / n], n codes in a word from its low end, those of
three bits across words; scales [groups, outputs]; g_idx int32 [inputs], the group of each input. Codes of two and three
bits are held in four. Format ``gptq`` stores zero points minus one, ``gptq_v2`` as they are. Those of ``marlin`` and
``marlin_24``, which have no zero points, are seen as ``marlin_source`` has turned them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.patterns import Pattern
from lsv_quant.checkpoints.packed import (
    PackedWeights,
    Packing,
    by_layer,
    dynamic_pattern,
    expect_plain_activations,
    group_size,
    layer_names,
)
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import Held, in_order, order_of_groups
from lsv_quant.tables import NIBBLES
from lsv_runtime.weights.codebook import Codebook, from_nibbles, to_nibbles
from lsv_runtime.weights.quantizer import Linear, LinearLayer, Role, StoredTensor, within

BITS = 2, 3, 4, 8
_MARLIN = {"marlin": (4,), "marlin_24": (4, 8)}
"""Bits of codes in these layouts."""
_FORMATS = ("gptq", "gptq_v2", *_MARLIN)
_ROWS = 256
"""Outputs whose codes are spread at a time."""


@dataclass(frozen=True, slots=True)
class GptqPacking(Packing):
    """Words that hold the codes of several inputs.

    ``ordered``: the inputs of a group are not adjacent (act-order); ``less_one``: zero points are stored minus one.
    """

    ordered: bool = False
    less_one: bool = True

    def codebook(self) -> Codebook:
        """A single group is in order wherever its inputs are."""
        return replace(Packing.codebook(self), ordered=self.ordered and self.group > 0)

    def words(self) -> StoredTensor:
        return StoredTensor("qweight", torch.int32, output_axis=1, input_axis=0, per_input=self.per_word)

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        """With g_idx; and with a bias even if the layer has none, because AutoGPTQ used to write zeros there."""
        tensors = (*Packing.stored(self, layer), StoredTensor("g_idx", torch.int32, input_axis=0, optional=True))
        no_bias = StoredTensor("bias", output_axis=0, optional=True)
        return tensors if layer.stored_bias else (*tensors, no_bias)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        if not layer.bias:
            tensors = {"no_bias" if suffix == "bias" else suffix: tensor for suffix, tensor in tensors.items()}
        return Packing.build(self, layer, tensors)

    def decode(self, tensors: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        if "no_bias" in tensors and bool(tensors["no_bias"].any()):
            raise CheckpointError(f"{layer.tensor_name('bias')} is not zero, but the architecture has no bias there")
        held, found = Packing.decode(self, tensors, layer), tensors.get("g_idx")
        order = order_of_groups(found, layer, self.group or (layer.reads or (0, layer.inputs))[1], "g_idx")
        order = order.to(held.codes.device)
        if self.codebook().ordered:
            return held._replace(codes=in_order(held.codes, order, max(self.bits, 4)), order=order.int())
        if not torch.equal(order, torch.arange(layer.inputs, device=order.device)):
            raise CheckpointError(
                f"{layer.tensor_name('g_idx')}: the inputs of a group lie apart, but quantization_config has no "
                "desc_act = true: correct it with --hf-overrides"
            )
        return held

    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        packed = words.T.contiguous().view(torch.uint8)
        if self.bits >= 4:
            return packed
        lift = len(NIBBLES) // 2 - self.middle  # to be as far from the middle of four bits
        return torch.cat([to_nibbles(spread(rows, self.bits) + lift) for rows in packed.split(_ROWS)])

    def unpack_zeros(self, words: torch.Tensor) -> torch.Tensor:
        zeros = spread(words.view(torch.uint8), self.bits)
        return zeros + 1 & 2 * self.middle - 1 if self.less_one else zeros


@dataclass(frozen=True, slots=True)
class GptqLayers:
    """How each layer is packed: within blocks those that ``only`` names, if it names any; the head if ``head`` says so.

    The first pattern of ``overrides`` that matches the beginning of a name applies.
    """

    packing: GptqPacking
    head: bool
    only: tuple[str, ...]
    overrides: tuple[tuple[Pattern, GptqPacking | None], ...]

    def __call__(self, names: Sequence[str], role: Role) -> GptqPacking | None:
        named = any(within(wanted, name) for wanted in self.only for name in names) or not self.only
        if not (self.head if role == "head" else named):
            return None
        meant = (packing for pattern, packing in self.overrides if any(map(pattern.match, names)))
        return next(meant, self.packing)


def spread(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes uint8 [..., n * bits / 8] of codes that follow one another from the low end -> codes uint8 [..., n].

    A code of three bits may lie in two bytes; as many bytes as it has bits hold eight.
    """
    if bits == 8:
        return packed
    if bits == 4:
        return from_nibbles(packed)
    parts = packed.unflatten(-1, (-1, bits)).int()
    eight = sum((parts[..., place] << 8 * place for place in range(1, bits)), parts[..., 0])
    places = bits * torch.arange(8, device=packed.device)
    return (eight[..., None] >> places & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def make(quantization_config: Mapping[str, Any]) -> PackedWeights:
    """The quantizer of a checkpoint. Raises ``CheckpointError`` for a config that can't be honoured."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("gptq",))
    format = scheme.choose("checkpoint_format", _FORMATS, scheme.choose("format", _FORMATS, "gptq"))
    if scheme.choose("is_marlin_format", (True, False), False):
        format = "marlin"  # as AutoGPTQ said it up to 0.7.1
    scheme.choose("pack_dtype", ("int32",), "int32")
    expect_plain_activations(scheme)
    packing = GptqPacking(
        bits=scheme.choose("bits", _MARLIN.get(format, BITS)),
        group=group_size(scheme, "group_size"),
        symmetric=scheme.choose("sym", (True,) if format in _MARLIN else (True, False), format in _MARLIN),
        ordered=scheme.choose("desc_act", (False,) if format in _MARLIN else (True, False), False),
        less_one=format == "gptq",
    )
    layers = GptqLayers(
        packing,
        head=scheme.choose("lm_head", (True, False), False),
        only=layer_names(scheme, "modules_in_block_to_quantize"),
        overrides=tuple(_override(packing, *entry) for entry in by_layer(scheme, "dynamic")),
    )
    scheme.finish()
    return PackedWeights("gptq", layers)


def _override(packing: GptqPacking, key: str, changes: Scheme) -> tuple[Pattern, GptqPacking | None]:
    """An entry of GPTQModel's ``dynamic``: ``-:`` and a pattern for layers left plain, else a pattern for layers packed
    differently.
    """
    pattern = dynamic_pattern(key, changes)
    if key.startswith("-:"):
        return pattern, None
    changed = replace(
        packing,
        bits=changes.choose("bits", BITS, packing.bits),
        group=group_size(changes, "group_size", packing.group),
        symmetric=changes.choose("sym", (True, False), packing.symmetric),
        ordered=changes.choose("desc_act", (True, False), packing.ordered),
    )
    changes.finish()
    return pattern, changed
