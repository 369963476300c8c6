"""Products in which weights and rows are both e4m3 (W8A8): rows are rounded when they come, with a scale each, or one
for every group of inputs that weights have.
"""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_runtime.weights.codebook import CodedLinear
from lsv_triton.gemm.linear import TritonLinear
from lsv_triton.gemm.moe import GroupedExperts, why_not_experts
from lsv_triton.gemm.rounding import round_rows_reference
from lsv_triton.gemm.weights import why_not_rounded


class Fp8Linear(TritonLinear):
    """``lsv_runtime.weights.codebook.CodedLinear`` of e4m3 that is meant for it; see ``why_not_rounded``."""

    rounds = True


class Fp8Experts(GroupedExperts):
    """The same of experts: what goes into their first layers is rounded once for all experts of a token."""

    rounds = True


def why_not_rounded_experts(spec: OpSpec) -> str | None:
    """None, or why experts can't be computed together from quantised rows."""
    return why_not_rounded(spec) or why_not_experts(spec)


def fp8_reference(linear: CodedLinear, x: torch.Tensor) -> torch.Tensor:
    """What ``Fp8Linear`` computes of x [T, inputs], in plain torch."""
    group = linear.codebook.group
    codes, scales = round_rows_reference(x, torch.float8_e4m3fn, group=group, bound=linear.input_bound)
    spread = scales.T.repeat_interleave(group or x.shape[1], dim=1)[:, : x.shape[1]]
    return linear.reference(codes.float() * spread).to(x.dtype)
