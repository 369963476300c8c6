"""``inc``: weights and activations in e4m3, both with one scale a layer, the activations' from measurements.

In mode MEASURE the model runs as it is and the largest inputs of its layers are recorded; see
``lsv_hpu.neural_compressor.files``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_base.errors import ConfigError
from lsv_hpu import selection
from lsv_hpu.neural_compressor.calibration import Calibration, raise_peak
from lsv_hpu.vendor_ops import FP8
from lsv_runtime.ops import Kernel
from lsv_runtime.weights.quantizer import (
    WEIGHT,
    Linear,
    LinearLayer,
    PerLayer,
    PlainLinear,
    Quantizer,
    StoredTensor,
    Unquantised,
)

_FUSED = {("q_proj", "k_proj", "v_proj"): "qkv_proj", ("gate_proj", "up_proj"): "gate_up_proj"}
_TYPES = {
    "column": frozenset({"Linear", "ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear"}),
    "row": frozenset({"Linear", "RowParallelLinear"}),
    "head": frozenset({"ParallelLMHead"}),
}
"""What classes of layers are called where files of measurements come from."""


class Measured(PlainLinear):
    """A plain layer that remembers the largest input it has met."""

    op: ClassVar[str] = "linear.measured"
    format: ClassVar[str] = "measured"

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], calibration: Calibration) -> None:
        super().__init__(layer, tensors["weight"], tensors.get("bias"))
        self._calibration = calibration
        self.register_buffer("peak", None)

    def filled(self) -> None:
        self.peak = self._calibration.watch(module_names(self.layer)[0], self.weight.device)

    def dequantise(self, rows: slice = slice(None)) -> torch.Tensor | None:
        return None  # what follows from weights is found by inputs, which would be remembered here

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        raise_peak(self.peak, x)
        return super().reference(x)


class StaticFp8(Linear):
    """fp8_weight e4m3 [outputs, inputs] in units of weight_scale; x is rounded in units of input_scale; float32 [].

    Products are added up in float32.
    """

    op: ClassVar[str] = "linear.fp8_static"
    format: ClassVar[str] = "fp8_static"
    fp8_weight: torch.Tensor
    weight_scale: torch.Tensor
    input_scale: torch.Tensor
    input_factor: torch.Tensor

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], calibration: Calibration) -> None:
        super().__init__(layer)
        self.plain, self.bias = tensors["weight"], tensors.get("bias")
        self.largest = selection.ops().largest_fp8
        self._calibration = calibration
        self._scale = calibration.input_scale(module_names(layer))

    def filled(self) -> None:
        plain = self.release("plain").float()
        scale = self._calibration.scale(float(plain.abs().max()))
        self.keep("fp8_weight", _round(plain / scale, self.largest))
        numbers = {"weight_scale": scale, "input_scale": self._scale, "input_factor": 1 / self._scale}
        for name, number in numbers.items():
            self.keep(name, torch.tensor(number, dtype=torch.float32, device=plain.device))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        rounded = _round(x.float() * self.input_factor, self.largest).float() * self.input_scale
        y = functional.linear(rounded, self.fp8_weight.float() * self.weight_scale)
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


class StaticFp8Gemm(Kernel):
    """``StaticFp8`` by ``fp8_gemm_v2``; x [..., inputs]."""

    def __init__(self, module: StaticFp8, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = self._module
        coded = self._ops.to_fp8(x.reshape(-1, x.shape[-1]), module.input_factor)
        y = self._ops.gemm_fp8(coded, module.fp8_weight, x.dtype, module.input_scale, module.weight_scale, module.bias)
        return y.view(*x.shape[:-1], -1)


class Inc(PerLayer):
    """Measures or quantises the layers that QUANT_CONFIG covers; experts stay as they are."""

    name = "inc"

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def choose(self, layer: LinearLayer) -> Quantizer:
        name = module_names(layer)[0]
        if ".experts." in name or not self._calibration.config.covers(name, _TYPES[layer.role]):
            return Unquantised()
        return _Online(Measured if self._calibration.measuring else StaticFp8, self._calibration)


class _Online:
    """Layers made from plain weights."""

    name = "inc"

    def __init__(self, make: type[Measured] | type[StaticFp8], calibration: Calibration) -> None:
        self._make, self._calibration = make, calibration

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return self._make(layer, tensors, self._calibration)


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    """Raises ``ConfigError`` where no device has been opened with a QUANT_CONFIG."""
    calibration = selection.calibration()
    if calibration is None:
        raise ConfigError(
            "quantization inc needs platform hpu and the file that hpu.quant_config (QUANT_CONFIG) names",
            param="quantization",
        )
    return Inc(calibration)


def module_names(layer: LinearLayer) -> tuple[str, ...]:
    """What files call the layer, fused first and then its parts: ``…self_attn.qkv_proj``, ``…q_proj`` …"""
    parts = layer.part_names
    places, names = zip(*(part.rpartition(".")[::2] for part in parts), strict=True)
    fused = _FUSED.get(names, names[0])
    return (f"{places[0]}.{fused}" if places[0] else fused, *parts)


def _round(x: torch.Tensor, largest: float) -> torch.Tensor:
    return x.clamp(-largest, largest).to(FP8)
