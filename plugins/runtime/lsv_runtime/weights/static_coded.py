"""Coded weights under activations that become 8-bit floats by a scale of the checkpoint's own (static W8A8)."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv_runtime.ops import Kernel
from lsv_runtime.weights.codebook import CodedLinear

LARGEST_INPUT = 448.0
"""The largest number of e4m3: what an activation is clamped to, in units of its scale."""


class RoundingKernel(Kernel):
    """A kernel of a layer that rounds its activations by a stored scale."""

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's results without that: x [..., inputs] -> [..., outputs]. Rows of an identity must be exact."""
        raise NotImplementedError


class StaticCodedLinear(CodedLinear):
    """A coded layer whose activations are ``e4m3(clamp(x / input_scale)) * input_scale``.

    The checkpoint was calibrated for that, so every device computes it: the rounding is part of the reference. Formats
    keep ``input_scale`` in ``filled``, next to calling ``hold``.
    """

    op: ClassVar[str] = "linear.coded_static"
    format: ClassVar[str] = "coded_static"
    input_scale: torch.Tensor
    """float32 [1]."""

    def round_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., inputs] of any floats -> float8_e4m3fn in units of ``input_scale``. A NaN stays one."""
        return (x.float() / self.input_scale).clamp(-LARGEST_INPUT, LARGEST_INPUT).to(torch.float8_e4m3fn)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return super().reference(self.round_inputs(x).float() * self.input_scale).to(x.dtype)

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.kernel, RoundingKernel):
            return self.kernel.unrounded(x)
        return super().reference(x)
