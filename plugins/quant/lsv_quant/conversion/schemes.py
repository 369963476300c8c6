"""lsv's formats as compressed-tensors describes and stores them.

Source: the ``compressed_tensors`` package, ``quantization.quant_args`` for the config and ``compressors`` for the
tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

from lsv_base.errors import ConfigError
from lsv_quant.conversion.formats import WRITABLE
from lsv_quant.online.int4 import Int4Linear
from lsv_quant.online.int8 import Int8Linear
from lsv_quant.online.online_coded import OnlineCoded
from lsv_quant.tables import BYTES, E2M1, E4M3
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import Linear

_WORD = 8
"""Codes of 4 bits in a word."""
_BIAS = 127
"""Added to the exponent of a scale that is a power of two."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How weights or activations are rounded: with a scale for each output, token or group of inputs."""

    bits: int
    type: Literal["int", "float"] = "int"
    strategy: Literal["channel", "token", "group"] = "channel"
    group: int = 0
    """The inputs that share a scale, if the strategy is ``group``."""
    exponents: bool = False
    """Whether scales are stored as the exponents of powers of two."""

    def entry(self, *, dynamic: bool) -> dict[str, Any]:
        """``dynamic`` is whether numbers are rounded as they come, as activations are."""
        found = {"num_bits": self.bits, "type": self.type, "symmetric": True, "dynamic": dynamic}
        found |= {"strategy": self.strategy}
        found |= {"group_size": self.group} if self.group else {}
        return found | ({"scale_dtype": "torch.uint8"} if self.exponents else {})


@dataclass(frozen=True, slots=True)
class Scheme:
    """How layers are stored, and how their activations are rounded; None leaves these as they are."""

    format: str
    weights: Numbers
    activations: Numbers | None = None

    @property
    def packed(self) -> bool:
        """Whether codes lie in words or pairs, in a tensor of a name of its own."""
        return self.format.endswith("pack-quantized")

    def entry(self, targets: Iterable[str]) -> dict[str, Any]:
        """The entry of ``config_groups``."""
        return {
            "targets": list(targets),
            "weights": self.weights.entry(dynamic=False),
            "input_activations": None if self.activations is None else self.activations.entry(dynamic=True),
            "output_activations": None,
            "format": self.format,
        }


_CODED = {
    Codebook(BYTES): Scheme("int-quantized", Numbers(8)),
    Codebook(E4M3): Scheme("float-quantized", Numbers(8, "float"), Numbers(8, "float", "token")),
    Codebook(E2M1, 32): Scheme("mxfp4-pack-quantized", Numbers(4, "float", "group", 32, exponents=True)),
}
"""Of the codes that layers hold."""


def scheme_of(linear: Linear, name: str) -> Scheme:
    """The scheme of a layer in the format ``name``. Raises ``ConfigError`` for one that compressed-tensors lacks."""
    if isinstance(linear, Int4Linear):
        return make_int4(linear.group)
    if isinstance(linear, Int8Linear):
        by_group = Numbers(8, strategy="group", group=linear.group)
        return Scheme("int-quantized", Numbers(8), by_group if linear.group else Numbers(8, strategy="token"))
    if isinstance(linear, OnlineCoded) and linear.codebook in _CODED:
        return _CODED[linear.codebook]
    raise ConfigError(
        f"{name} can't be written: {_why_not(linear)}. These formats can be written: {', '.join(WRITABLE)}",
        param="quantization",
    )


def make_int4(group: int) -> Scheme:
    """Weights of 4 bits with as many scales as their activations have."""
    weights, activations = (Numbers(bits, strategy="group", group=group) for bits in (4, 8))
    return Scheme("pack-quantized", weights, activations)


def _why_not(linear: Linear) -> str:
    if not isinstance(linear, OnlineCoded):
        return "compressed-tensors has no such format"
    if linear.codebook.offsets:
        return "it adds an offset to each group of weights, and compressed-tensors stores only whole zero points"
    return "compressed-tensors has no format whose codes stand for the values of a table"


def stored_tensors(linear: Linear) -> dict[str, torch.Tensor]:
    """What a file holds of a filled layer, by suffix; the first axis of each runs over the outputs."""
    if isinstance(linear, Int4Linear):
        nibbles = functional.pad(linear.nibbles, (0, -linear.nibbles.shape[1] % (_WORD // 2)))
        return {"weight_packed": nibbles.view(torch.int32), "weight_scale": _shorten(linear.scales)}
    if isinstance(linear, Int8Linear):
        return {"weight": linear.codes, "weight_scale": _shorten(linear.scales[:, None])}
    assert isinstance(linear, OnlineCoded), "it has a scheme"
    if linear.codebook.bits == 4:
        return {"weight_packed": linear.codes, "weight_scale": _to_exponents(linear.scales)}
    is_float = linear.codebook.table == E4M3
    codes = linear.codes.view(torch.float8_e4m3fn) if is_float else (linear.codes ^ 128).view(torch.int8)
    return {"weight": codes, "weight_scale": _shorten(linear.scales)}


def _shorten(scales: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where that holds all of them exactly."""
    short = scales.bfloat16()
    return short if torch.equal(short.float(), scales) else scales


def _to_exponents(scales: torch.Tensor) -> torch.Tensor:
    """Powers of two float32 -> uint8, as OCP Microscaling Formats 1.0 stores them."""
    return (torch.frexp(scales).exponent - 1 + _BIAS).to(torch.uint8)


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
