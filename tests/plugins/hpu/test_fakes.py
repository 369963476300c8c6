"""Calls that the Gaudi software would refuse, its fakes refuse: by Intel's own schemas and signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.vendor_ops import FP8, VendorOps

X, CODED, ONE = torch.ones(2, 8), torch.ones(2, 8).to(FP8), torch.ones(1)
ROUTES, SHARES = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
HEADS = torch.ones(1, 2, 4, 8)
MOE = {
    "hidden_states": X,
    "expert_routing_table": ROUTES,
    "router_weights": SHARES,
    "w12": [torch.ones(6, 8)],
    "w3": [torch.ones(8, 3)],
    "permuted_weights": True,
    "activation": "silu",
    "experts_min": 0,
    "experts_max": 0,
}

GOOD: list[Callable[[VendorOps], Any]] = [
    lambda ops: ops.hpu.cast_to_fp8_v2(X, ONE, False, False, FP8, None),
    lambda ops: ops.hpu.cast_from_fp8(CODED, ONE, torch.bfloat16),
    lambda ops: ops.hpu.fp8_gemm_v2(CODED, False, CODED, True, None, torch.bfloat16, ONE, ONE, None, False),
    lambda ops: ops.hpu.mixture_of_experts(**MOE),
    lambda ops: ops.sdpa.apply(HEADS, HEADS, HEADS, None, 0.0, True, 1.0, "fast", True, None, "right"),
    lambda ops: ops.norm.apply(X[None], ONE.expand(8), 1e-5),
]
BAD: list[tuple[str, Callable[[VendorOps], Any]]] = [
    ("an op that is not there", lambda ops: ops.hpu.cast_to_fp8_v3(X)),
    ("another keyword", lambda ops: ops.hpu.cast_to_fp8_v2(X, scales=ONE)),
    ("too few arguments", lambda ops: ops.hpu.cast_from_fp8(CODED, ONE)),
    ("no type of a result", lambda ops: ops.hpu.fp8_gemm_v2(CODED, False, CODED, True, None, X, ONE)),
    ("a text for a number", lambda ops: ops.hpu.mixture_of_experts(**MOE | {"experts_max": "0"})),
    ("one tensor for a list", lambda ops: ops.hpu.mixture_of_experts(**MOE | {"w3": None})),
    ("experts of both forms", lambda ops: ops.hpu.mixture_of_experts(**MOE, w1=MOE["w12"])),
    ("a keyword to an autograd function", lambda ops: ops.sdpa.apply(q=HEADS, k=HEADS, v=HEADS)),
    ("a keyword behind positions", lambda ops: ops.norm.apply(X[None], ONE.expand(8), eps=1e-5)),
    ("an argument too many", lambda ops: ops.norm.apply(X[None], ONE.expand(8), 1e-5, True, 0, False, None)),
    ("a mask with lengths", lambda ops: ops.sdpa.apply(
        HEADS, HEADS, HEADS, torch.ones(1, 1, 4, 4), 0.0, False, 1.0, "fast", True, torch.ones(1).int(), "right")),
]  # fmt: skip


@pytest.mark.parametrize("call", GOOD)
def test_calls_as_they_are(call: Callable[[VendorOps], Any]) -> None:
    call(fake_ops())


@pytest.mark.parametrize("call", [call for _, call in BAD], ids=[name for name, _ in BAD])
def test_calls_that_are_refused(call: Callable[[VendorOps], Any]) -> None:
    with pytest.raises((TypeError, RuntimeError, AttributeError, ValueError)):
        call(fake_ops())


@pytest.mark.row("F-996")
def test_generations_differ_in_their_range() -> None:
    (large, _), (larger, _) = (
        fake_ops(gaudi).hpu.cast_to_fp8_v2(1000 * X, None, False, False, FP8) for gaudi in ("gaudi2", "gaudi3")
    )
    assert (large.float().max(), larger.float().max()) == (240, 448)
