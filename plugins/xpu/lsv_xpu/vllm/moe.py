"""Mixture of experts over the grouped product of vllm_xpu_kernels."""

from __future__ import annotations

from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import Kernel
from lsv_xpu import libraries
from lsv_xpu.vllm.calls import VllmKernels
from lsv_xpu.vllm.ops import GATES, why_not_vllm


class GroupedExperts(Kernel):
    """``lsv_runtime.nn.moe.MoE`` with plain weights: rows sorted by expert, two products for all experts, x [T,
    hidden].

    How many rows an expert has stays on the device. A token's share of each of its experts is added up in float32.
    """

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        self._module = module
        self._library: VllmKernels = libraries.obtain(libraries.VLLM)
        experts: list[Any] = list(module.experts)
        self._experts, self._op = experts, GATES[experts[0].act.name]

    def pack(self) -> None:
        """[outputs, inputs] of each expert become [experts, inputs, outputs]."""
        keep = self._module.keep
        self._gate_up = keep("gate_up", _stack([expert.gate_up.linear for expert in self._experts]))
        self._down = keep("down", _stack([expert.down.linear for expert in self._experts]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = self._module
        weights, chosen = module.router(x)
        top, pairs = chosen.shape[1], chosen.flatten()
        order = pairs.argsort(stable=True)
        numbers = torch.arange(len(self._experts), device=x.device)
        rows = (pairs[:, None] == numbers).sum(0, dtype=torch.int32)
        both = self._product(x[order // top], self._gate_up, rows)
        hidden = both.new_empty(len(both), both.shape[1] // 2)
        getattr(self._library, self._op)(hidden, both)
        y = self._product(hidden, self._down, rows)[order.argsort()].unflatten(0, (-1, top))
        y = (y.float() * weights[..., None]).sum(1).to(x.dtype)
        return y if module.communicator is None else module.communicator.all_reduce(y)

    def _product(self, x: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), weights.shape[2])
        self._library.grouped_gemm(out, x, weights, rows)
        return out


def _stack(linears: list[Any]) -> torch.Tensor:
    outputs, inputs = linears[0].weight.shape
    stacked = linears[0].weight.new_empty(len(linears), inputs, outputs)
    for into, linear in zip(stacked, linears, strict=True):
        into.copy_(linear.release("weight").t())
    return stacked


def why_not_grouped(spec: OpSpec) -> str | None:
    """None, or why the experts can't be computed together."""
    missing = why_not_vllm(spec)
    if missing is not None:
        return missing
    if spec.dtype not in ("float16", "bfloat16"):
        return f"{spec.dtype} is not one of float16, bfloat16"
    if spec.format != "plain" or "bias" in spec.flags:
        return f"takes plain weights without a bias, not {spec.format}"
    if not spec.flags & GATES.keys():
        return f"has no gate like {', '.join(sorted(spec.flags))}"
    if spec.shape["hidden"] % 8 or spec.shape["intermediate"] % 8:
        return "sizes must be multiples of 8"
    return None
