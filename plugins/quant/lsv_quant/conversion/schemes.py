"""lsv's formats as compressed-tensors describes and stores them.

Source: the ``compressed_tensors`` package, ``quantization.quant_args`` for the config and ``compressors`` for the
tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lsv.errors import ConfigError
from lsv.weights.quantizer import Linear
from lsv_quant.online.int4 import Int4Linear
from lsv_quant.online.online_coded import OnlineCoded
from lsv_quant.tables import BYTES

_WORD = 8
"""Codes of 4 bits in a word."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How layers are stored: ``bits`` of weights, and how many inputs share a scale; 0: all of them."""

    bits: int
    group: int = 0
    activations: bool = False
    """Whether activations are rounded to int8 as they come, with as many scales as weights have."""

    @property
    def format(self) -> str:
        return "pack-quantized" if self.bits == 4 else "int-quantized"

    def entry(self, targets: Iterable[str]) -> dict[str, Any]:
        """The entry of ``config_groups``."""
        weights = self._numbers(self.bits, dynamic=False)
        inputs = self._numbers(8, dynamic=True) if self.activations else None
        return {
            "targets": list(targets), "weights": weights, "input_activations": inputs, "output_activations": None,
            "format": self.format,
        }  # fmt: skip

    def _numbers(self, bits: int, *, dynamic: bool) -> dict[str, Any]:
        strategy = {"strategy": "group", "group_size": self.group} if self.group else {"strategy": "channel"}
        return {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": dynamic, **strategy}


def scheme_of(linear: Linear) -> Scheme:
    """The scheme of a layer. Raises ``ConfigError`` for a format that compressed-tensors has not."""
    if isinstance(linear, Int4Linear):
        return Scheme(4, linear.group, activations=True)
    if isinstance(linear, OnlineCoded) and linear.codebook.table == BYTES and not linear.codebook.group:
        return Scheme(8)
    raise ConfigError(
        f"{linear.format} weights can't be written as compressed-tensors: choose sym_int4, one of its forms "
        "(sym_int4_g32, _g64, _g128) or int8_weight_only",
        param="quantization",
    )


def stored_tensors(linear: Linear) -> dict[str, torch.Tensor]:
    """What a file holds of a filled layer, by suffix; the first axis of each runs over the outputs."""
    if isinstance(linear, Int4Linear):
        nibbles = functional.pad(linear.nibbles, (0, -linear.nibbles.shape[1] % (_WORD // 2)))
        return {"weight_packed": nibbles.view(torch.int32), "weight_scale": _shorten(linear.scales)}
    assert isinstance(linear, OnlineCoded), "it has a scheme"
    return {"weight": (linear.codes ^ 128).view(torch.int8), "weight_scale": _shorten(linear.scales)}


def _shorten(scales: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where that holds all of them exactly."""
    short = scales.bfloat16()
    return short if torch.equal(short.float(), scales) else scales


def describe(layers: Mapping[str, Scheme]) -> dict[str, Any]:
    """config.json's ``quantization_config``, given the scheme of each layer that is quantised by its full name."""
    groups = [scheme.entry(targets) for scheme, targets in name_targets(layers).items()]
    formats = {group["format"] for group in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": [],
    }


def name_targets(found: Mapping[str, Scheme]) -> dict[Scheme, list[str]]:
    """What names the layers of each scheme, given every layer's: patterns that leave out the numbers of layers and
    experts, or the names themselves where such a pattern would mean layers of several schemes.
    """
    patterns: dict[str, set[Scheme]] = {}
    for name, scheme in found.items():
        patterns.setdefault(_pattern(name), set()).add(scheme)
    targets: dict[Scheme, dict[str, None]] = {}
    for name, scheme in found.items():
        pattern = _pattern(name)
        alone = len(patterns[pattern]) == 1 and pattern != f"re:{re.escape(name)}$"
        targets.setdefault(scheme, {})[pattern if alone else name] = None
    return {scheme: list(names) for scheme, names in targets.items()}


def _pattern(name: str) -> str:
    parts = (r"\d+" if part.isdigit() else re.escape(part) for part in name.split("."))
    return "re:" + r"\.".join(parts) + "$"
