"""The compute calls this plugin makes into Intel's Gaudi software, under the names and signatures they have there.

Sources: Gaudi documentation, "PyTorch Custom Ops" and "Fused Scaled Dot Product Attention", and the schemas
that gaudi-pytorch-bridge registers under ``torch.ops.hpu`` (``lsv_hpu.emulation.schemas``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lsv_hpu.devices import LARGEST_FP8, Gaudi
from lsv_hpu.software import load

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class VendorOps:
    """``sdpa`` is the class ``FusedSDPA``, ``norm`` the class ``FusedRMSNorm`` and ``hpu`` the namespace
    ``torch.ops.hpu``, or what stands in for them.
    """

    gaudi: Gaudi
    sdpa: Any
    norm: Any
    hpu: Any

    @property
    def largest_fp8(self) -> float:
        return LARGEST_FP8[self.gaudi]

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        *,
        bias: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q [R, heads, Q, dim] over k and v [R, kv_heads, K, dim]: with a ``bias`` [R, 1, Q, K] on scores, or causal
        where Q is K and each row has ``lengths`` int32 [R] tokens at its front. A bias and causal exclude each other.
        """
        causal = bias is None
        out: torch.Tensor = self.sdpa.apply(q, k, v, bias, 0.0, causal, scale, "fast", True, lengths, "right")
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [A, B, size] and weight [size] of one dtype."""
        out: torch.Tensor = self.norm.apply(x, weight, eps)
        return out

    def to_fp8(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """``x * factor`` as e4m3; what is beyond its range becomes its largest number."""
        out: torch.Tensor = self.hpu.cast_to_fp8_v2(x, factor, False, False, FP8)[0]
        return out

    def from_fp8(self, x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``x * factor`` of an e4m3 tensor in ``dtype``."""
        out: torch.Tensor = self.hpu.cast_from_fp8(x, factor, dtype)
        return out

    def gemm_fp8(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        dtype: torch.dtype,
        x_scale: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """x [T, in] by weight [out, in], both e4m3, in units of their scales -> [T, out] in ``dtype``."""
        out: torch.Tensor = self.hpu.fp8_gemm_v2(
            x, False, weight, True, None, dtype, x_scale, weight_scale, bias, False
        )
        return out

    def from_uint4(
        self, codes: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """``steps * (code - zero)`` [in, out]: codes int32 [in, out / 8] and zeros int32 [groups, out / 8] hold eight
        each; steps and zeros [groups, out] are those of in / groups inputs in a row.
        """
        out: torch.Tensor = self.hpu.convert_from_uint4(codes, steps, zeros, dtype)
        return out

    def mix_experts(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        gate_up: Sequence[torch.Tensor],
        down: Sequence[torch.Tensor],
        activation: str,
        first: int = 0,
    ) -> torch.Tensor:
        """x [T, hidden] through the ``experts`` int64 [T, top], weighted with ``weights`` [T, top] -> [T, hidden].

        gate_up are [2 * intermediate, hidden], down [hidden, intermediate] of the experts from ``first`` on; others
        count nothing. Op by op the software does not look at ``first``: it takes all experts from 0 on then.
        Source: gaudi-pytorch-bridge v1.19.0 (5a56187), habana_eager/eager_custom_op_register.cpp,
        ``mixture_of_experts_common``.
        """
        out: torch.Tensor = self.hpu.mixture_of_experts(
            hidden_states=x,
            expert_routing_table=experts,
            router_weights=weights,
            w12=list(gate_up),
            w3=list(down),
            permuted_weights=True,
            activation=activation,
            experts_min=first,
            experts_max=first + len(down) - 1,
        )
        return out


def installed(gaudi: Gaudi) -> VendorOps:
    """The calls of the installed software. Raises ``ConfigError`` where it can't be loaded."""
    sdpa = load("habana_frameworks.torch.hpex.kernels:FusedSDPA")
    norm = load("habana_frameworks.torch.hpex.normalization:FusedRMSNorm")
    return VendorOps(gaudi, sdpa, norm, torch.ops.hpu)
