"""Stand-ins for Intel's compute calls: their signatures and rules, computed in plain torch.

Source of signatures: HabanaAI/gaudi-pytorch-bridge v1.19.0 (5a56187), named with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from lsv_hpu.devices import LARGEST_FP8, Gaudi
from lsv_hpu.emulation.schemas import SCHEMAS
from lsv_hpu.vendor_ops import FP8, VendorOps
from lsv_runtime import products
from lsv_runtime.emulation.fakes import StrictFake

_MODES = ("None", "fast", "fp32")


class FakeFusedSDPA(StrictFake):
    """The class ``FusedSDPA``. Tensors are [B, heads, tokens, dim]; fewer KV heads than heads serve several each.

    Source: python_packages/habana_frameworks/torch/hpex/kernels/FusedSDPA.py, ``FusedSDPA.forward`` and
    ``sdpa_fwd_wrapper``. It is an autograd function, whose ``apply`` takes no keywords.
    """

    library, computes = "FusedSDPA", True

    def apply(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",
        recompute_mode: bool | None = None,
        valid_seq_len: torch.Tensor | None = None,
        seq_padding_type: str = "left",
        return_dropout_mask: bool = False,
        return_attn_probs: bool = False,
        /,
    ) -> torch.Tensor:
        self.record("apply", tuple(q.shape), tuple(k.shape), is_causal, attn_mask is not None)
        self._check(q, k, v, attn_mask, is_causal, valid_seq_len)
        _require(softmax_mode in _MODES, f"softmax_mode {softmax_mode!r} is not one of {_MODES}")
        _require(seq_padding_type == "right", f"seq_padding_type is {seq_padding_type!r}, and only right is used here")
        _require(dropout_p == 0.0, "dropout has no place in inference")
        _require(not (return_dropout_mask or return_attn_probs), "nothing but the result is used here")
        mask = attn_mask
        if is_causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        if valid_seq_len is not None:
            there = torch.arange(k.shape[2], device=q.device) < valid_seq_len[:, None]
            mask = there[:, None, None] & mask
        return products.attend(q, k, v, mask=mask, scale=scale, grouped=True)

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        lengths: torch.Tensor | None,
    ) -> None:
        _require(not (causal and mask is not None), "a mask and is_causal exclude each other")
        _require(query.dtype == key.dtype == value.dtype, "query, key and value are of one dtype")
        _require(key.shape == value.shape, f"key {tuple(key.shape)} and value {tuple(value.shape)} differ")
        _require(query.shape[1] % key.shape[1] == 0, "heads are no multiple of the KV heads")
        if mask is not None:
            expected = (len(query), 1, query.shape[2], key.shape[2])
            _require(tuple(mask.shape) == expected, f"the mask is {tuple(mask.shape)}, expected {expected}")
            _require(mask.dtype == query.dtype, f"the mask is {mask.dtype}, the query {query.dtype}")
        if lengths is not None:
            _require(causal and mask is None, "valid_seq_len goes with is_causal, and with no mask")
            _require(lengths.dtype == torch.int32, f"valid_seq_len is {lengths.dtype}, expected int32")
            _require(tuple(lengths.shape) == (len(query),), "valid_seq_len has one number a row")


class FakeFusedRMSNorm(StrictFake):
    """The class ``FusedRMSNorm``; it takes three axes and one dtype.

    Source: python_packages/habana_frameworks/torch/hpex/normalization/FusedRMSNorm.py, ``FusedRMSNorm.forward``.
    """

    library, computes = "FusedRMSNorm", True

    def apply(
        self,
        data_in: torch.Tensor,
        gamma: torch.Tensor,
        eps: float,
        use_stages: bool = True,
        bwd_mode: int = 0,
        fast_math: bool = False,
        /,
    ) -> torch.Tensor:
        self.record("apply", tuple(data_in.shape))
        _require(data_in.dim() == 3, f"FusedRMSNorm takes 3 axes, got {data_in.dim()}")
        _require(data_in.dtype == gamma.dtype, f"input is {data_in.dtype}, weight {gamma.dtype}")
        return functional.rms_norm(data_in, gamma.shape, gamma, eps)


class FakeHpuOps(StrictFake):
    """What answers ``torch.ops.hpu``; ``emulation.schemas`` are its signatures."""

    library, computes = "torch.ops.hpu", True

    def __init__(self, gaudi: Gaudi) -> None:
        super().__init__()
        self._largest = LARGEST_FP8[gaudi]

    def cast_to_fp8_v2(
        self,
        input: torch.Tensor,
        scale: torch.Tensor | None = None,
        stochastic_rounding: bool = False,
        is_amax: bool = False,
        dtype: torch.dtype | None = None,
        scale_shape: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.record("cast_to_fp8_v2", tuple(input.shape))
        _require(dtype == FP8, f"cast_to_fp8_v2 to {dtype}, expected {FP8}")
        _require(input.dtype in (torch.bfloat16, torch.float32, torch.float16), f"cast_to_fp8_v2 of {input.dtype}")
        scaled = input.float() if scale is None else input.float() * scale
        found = scaled.clamp(-self._largest, self._largest).to(FP8)
        return found, scaled.abs().amax() if is_amax else scaled.new_empty(0)

    def cast_from_fp8(
        self,
        input: torch.Tensor,
        scale: torch.Tensor | None,
        out_dtype: torch.dtype,
        scale_shape: Sequence[int] | None = None,
    ) -> torch.Tensor:
        self.record("cast_from_fp8", tuple(input.shape))
        _require(input.dtype == FP8, f"cast_from_fp8 of {input.dtype}, expected {FP8}")
        values = self._values(input)
        return (values if scale is None else values * scale).to(out_dtype)

    def fp8_gemm_v2(
        self,
        A: torch.Tensor,
        trans_A: bool,
        B: torch.Tensor,
        trans_B: bool,
        D: torch.Tensor | None,
        out_dtype: torch.dtype,
        A_scale_inv: torch.Tensor | None = None,
        B_scale_inv: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        accumulate: bool = False,
        B_scale_shape: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Despite their names, the scales are what results are multiplied by: of A one or one a row, of B one or one a
        column of the result.
        """
        self.record("fp8_gemm_v2", tuple(A.shape), tuple(B.shape))
        _require(A.dtype == B.dtype == FP8, f"fp8_gemm_v2 of {A.dtype} and {B.dtype}, expected {FP8}")
        _require(D is None, "fp8_gemm_v2 into D is not used here")
        _require(not accumulate, "accumulating is not used here")
        a, b = (self._values(x.mT if turned else x) for x, turned in ((A, trans_A), (B, trans_B)))
        for scale, allowed in ((A_scale_inv, {(), (1,), (len(a), 1)}), (B_scale_inv, {(), (1,), (b.shape[1],)})):
            if scale is not None:
                _require(tuple(scale.shape) in allowed, f"a scale is {tuple(scale.shape)}, expected one of {allowed}")
        out = a @ b
        for scale in (A_scale_inv, B_scale_inv):
            out = out if scale is None else out * scale.float()
        return (out if bias is None else out + bias.float()).to(out_dtype)

    def convert_from_uint4(
        self, input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, out_dtype: torch.dtype
    ) -> torch.Tensor:
        self.record("convert_from_uint4", tuple(input.shape))
        _require(zero_point is not None, "zeros are given here")
        assert zero_point is not None
        _require(input.dtype == zero_point.dtype == torch.int32, "codes and zeros are int32")
        _require(scale.dtype == out_dtype, f"scales are {scale.dtype}, expected {out_dtype}")
        groups, outputs = scale.shape
        _require(len(input) % groups == 0, f"{len(input)} inputs in {groups} groups")
        _require(input.shape[1] * 8 == zero_point.shape[1] * 8 == outputs, "scales and codes differ in outputs")
        places = torch.arange(0, 32, 4, device=input.device)
        codes, zeros = (((x[..., None] >> places) & 15).flatten(-2) for x in (input, zero_point))
        size = len(input) // groups
        spread = (part.repeat_interleave(size, 0) for part in (zeros, scale.float()))
        return ((codes - next(spread)) * next(spread)).to(out_dtype)

    def _values(self, x: torch.Tensor) -> torch.Tensor:
        """Codes beyond a device's range mean no number there."""
        values = x.float()
        return values.masked_fill(values.abs() > self._largest, torch.nan)

    def mixture_of_experts(
        self,
        hidden_states: torch.Tensor,
        expert_routing_table: torch.Tensor,
        router_weights: torch.Tensor,
        w12: Sequence[torch.Tensor],
        w3: Sequence[torch.Tensor],
        permuted_weights: bool,
        activation: str,
        experts_min: int,
        experts_max: int,
    ) -> torch.Tensor:
        self.record("mixture_of_experts", tuple(hidden_states.shape), experts_min, experts_max)
        _require(permuted_weights, "weights are [outputs, inputs]")
        _require(activation in ("silu", "gelu", "relu"), f"activation {activation!r}")
        _require(len(w12) == len(w3) == experts_max - experts_min + 1, "one pair of weights an expert")
        _require(expert_routing_table.dtype == torch.int64, "expert_routing_table is int64")
        _require(router_weights.dtype == hidden_states.dtype, "router_weights have the dtype of hidden_states")
        act = getattr(functional, activation)
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        for expert, (gate_up, down) in enumerate(zip(w12, w3, strict=True), start=experts_min):
            share = (router_weights.float() * (expert_routing_table == expert)).sum(-1, keepdim=True)
            gate, up = products.linear(hidden_states, gate_up).chunk(2, dim=-1)
            out += products.linear(act(gate) * up, down).float() * share
        return out.to(hidden_states.dtype)


def fake_ops(gaudi: Gaudi = "gaudi2") -> VendorOps:
    """A device's calls, each answered by a fake."""
    return VendorOps(gaudi, FakeFusedSDPA(), FakeFusedRMSNorm(), _register(gaudi)[0])


def answering(gaudi: Gaudi = "gaudi2") -> FakeHpuOps:
    """What has answered the ops of all of a generation's ``fake_ops`` in this process."""
    return _register(gaudi)[1]


@cache
def _register(gaudi: Gaudi) -> tuple[Any, FakeHpuOps, torch.library.Library]:
    """A namespace in ``torch.ops`` with Intel's schemas, which torch keeps as long as the last of the three lives."""
    name, fake = f"emulated_{gaudi}", FakeHpuOps(gaudi)
    library = torch.library.Library(name, "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    for op in ("cast_from_fp8", "cast_to_fp8_v2", "convert_from_uint4", "fp8_gemm_v2"):
        library.impl(op, getattr(fake, op), "CompositeExplicitAutograd")
    library.impl("mixture_of_experts.fused_weights", fake.mixture_of_experts, "CompositeExplicitAutograd")
    return getattr(torch.ops, name), fake, library


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
