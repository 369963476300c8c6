"""AutoRound checkpoints (Cheng et al. 2023; auto_round/inference of intel/auto-round): packed like AWQ's or GPTQ's, and
layers may differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsv_quant.checkpoints.awq import AwqPacking
from lsv_quant.checkpoints.gptq import BITS, GptqPacking
from lsv_quant.checkpoints.packed import (
    PackedWeights,
    Packing,
    by_layer,
    expect_plain_activations,
    group_size,
    layer_names,
)
from lsv_quant.checkpoints.scheme import Scheme
from lsv_runtime.weights.quantizer import LayerName, Role, within

_LIKE_GPTQ = (
    "auto", "auto_round:auto_gptq", "auto_round:gptq", "auto_round:gptq:exllamav2", "auto_round:gptq:tritonv2",
)  # fmt: skip
_LIKE_GPTQ_V2 = ("auto_round", "auto_round:gptqmodel", "auto_round:exllamav2", "auto_round:tritonv2")
_LIKE_AWQ = ("auto_round:auto_awq", "auto_round:awq")
_FORMATS = _LIKE_GPTQ + _LIKE_GPTQ_V2 + _LIKE_AWQ
"""Values of ``packing_format``; older checkpoints give the kernel they were for, under ``backend``."""
_BLOCKS = ("block_name_to_quantize", "to_quant_block_names", "quant_block_list")
_WORDS = re.compile(r"[\w.]+")


def make(quantization_config: Mapping[str, Any]) -> PackedWeights:
    """The quantizer of a checkpoint. Raises ``CheckpointError`` for a config that can't be honoured."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("auto-round", "intel/auto-round"))
    format = scheme.choose("packing_format", _FORMATS, scheme.choose("backend", _FORMATS, "auto"))
    packing = _packing(
        format,
        bits=scheme.choose("bits", _bits(format)),
        group=group_size(scheme, "group_size"),
        symmetric=scheme.choose("sym", (True, False), True),
    )
    expect_plain_activations(scheme)
    layers = AutoRoundLayers(
        packing,
        head=scheme.choose("quant_lm_head", (True, False), False),
        blocks=tuple(name for key in _BLOCKS for name in layer_names(scheme, key)),
        overrides=tuple(
            (_read_key(key, changes), _override(format, packing, changes))
            for key, changes in by_layer(scheme, "extra_config")
        ),
    )
    scheme.finish()
    return PackedWeights("auto-round", layers)


def _bits(format: str) -> tuple[int, ...]:
    return (4,) if format in _LIKE_AWQ else BITS


def _packing(format: str, bits: int, group: int, symmetric: bool) -> Packing:
    if format in _LIKE_AWQ:
        return AwqPacking(bits, group, symmetric)
    return GptqPacking(bits, group, symmetric, less_one=format in _LIKE_GPTQ)


def _override(format: str, packing: Packing, changes: Scheme) -> Packing | None:
    """How an entry of ``extra_config`` changes ``packing``; None where weights keep 16 bits or more."""
    bits = changes.choose("bits", (*_bits(format), 16, 32), packing.bits)
    if bits >= 16:
        return None
    group = group_size(changes, "group_size", packing.group)
    symmetric = changes.choose("sym", (True, False), packing.symmetric)
    expect_plain_activations(changes)
    changes.finish()
    return _packing(format, bits, group, symmetric)


@dataclass(frozen=True, slots=True)
class AutoRoundLayers:
    """How each layer is packed: those of ``blocks``, or all layers if none is named; the head if ``head`` says so.

    Layers that a key of ``overrides`` matches are packed as its value says, wherever they are.
    """

    packing: Packing
    head: bool
    blocks: tuple[str, ...]
    overrides: tuple[tuple[LayerName, Packing | None], ...]

    def __call__(self, names: Sequence[str], role: Role) -> Packing | None:
        exact = [packing for key, packing in self.overrides if key in names]
        for packing in exact or (packing for key, packing in self.overrides if _means(key, names)):
            return packing
        if role == "head":
            return self.packing if self.head else None
        inside = not self.blocks or any(f"{name}.".startswith(f"{one}.") for one in self.blocks for name in names)
        return self.packing if inside else None


def _read_key(key: str, changes: Scheme) -> LayerName:
    """A key of ``extra_config``: components of a name, or a regular expression if it is more than words."""
    return key if _WORDS.fullmatch(key) else changes.patterns.compile(key)


def _means(key: LayerName, names: Sequence[str]) -> bool:
    """Whether a key matches a layer, as a regular expression anywhere in its name."""
    return any(within(key, name) if isinstance(key, str) else key.search(name) for name in names)
