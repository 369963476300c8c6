"""Integer weights under activations that are rounded to int8 by a scale, and a zero point, of the checkpoint's own.

``x`` becomes ``clamp(round(x / input_scale) + input_zero_point, -128, 127)``, as llm-compressor calibrated it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.forms import refuse_zero_points
from lsv_quant.checkpoints.stored import CodedFormat, Held, StoredCoded
from lsv_runtime.weights.quantizer import Linear, LinearLayer, StoredTensor

_SCALE, _ZERO = "input_scale", "input_zero_point"


class StaticInt8(Linear):
    """The product of codes of activations, less their zero point, which every dtype of a model holds exactly.

    ``inner`` makes outputs of such codes: its scales have that of the activations in them.
    """

    op: ClassVar[str] = "linear.int8_static"
    format: ClassVar[str] = "int8_static"
    input_scales: torch.Tensor
    """float32 [parts], or [1] where parts are alike."""
    input_zeros: torch.Tensor
    """float32, of the same shape."""

    def __init__(
        self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], weights: CodedFormat, *, symmetric: bool
    ) -> None:
        super().__init__(layer)
        self._weights, self._symmetric = weights, symmetric
        self.inner = StoredCoded(layer, tensors, weights.codebook, self._decode)

    def _decode(self, stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        scales = stored[_SCALE].reshape(-1)
        if not bool(scales.all()):
            raise CheckpointError(f"{layer.tensor_name(_SCALE)} is 0: activations can't be rounded by it")
        if self._symmetric:
            refuse_zero_points(stored, layer, _ZERO, "activations")
        zeros = torch.zeros_like(scales) if self._symmetric else stored[_ZERO].reshape(-1).float()
        alike = bool((scales == scales[0]).all() and (zeros == zeros[0]).all())
        self.keep("input_scales", scales[:1] if alike else scales)
        self.keep("input_zeros", zeros[:1] if alike else zeros)
        held = self._weights.decode(stored, layer)
        factors = scales.repeat_interleave(torch.tensor(layer.outputs, device=scales.device))[:, None]
        offsets = None if held.offsets is None else held.offsets * factors
        return held._replace(scales=held.scales.float() * factors, offsets=offsets)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, self._round)

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, lambda x, part: x / self.input_scales[part])

    def _multiply(self, x: torch.Tensor, code: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
        """``code`` turns float32 activations into what a part multiplies."""
        found = [self.inner(code(x.float(), part).to(x.dtype)) for part in range(len(self.input_scales))]
        if len(found) == 1:
            return found[0]  # type: ignore[no-any-return]
        return torch.cat([y.split(self.layer.outputs, dim=-1)[part] for part, y in enumerate(found)], dim=-1)

    def _round(self, x: torch.Tensor, part: int) -> torch.Tensor:
        zero = self.input_zeros[part]
        return ((x / self.input_scales[part]).round() + zero).clamp(-128, 127) - zero


class StaticInt8Format:
    """Weights as ``weights`` has them, and how the activations of each part are rounded."""

    def __init__(self, weights: CodedFormat, *, symmetric: bool) -> None:
        self.name, self._weights, self._symmetric = weights.name, weights, symmetric

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        zero = StoredTensor(_ZERO, torch.int8, optional=self._symmetric)
        return (*self._weights.stored(layer), StoredTensor(_SCALE, torch.float32), zero)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return StaticInt8(layer, tensors, self._weights, symmetric=self._symmetric)
