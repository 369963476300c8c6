"""Kernels of Gaudi's software for norms and experts. All shapes follow from those of the inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_hpu import selection
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.ops import Kernel, MixingKernel

_ACTIVATIONS = ("silu", "gelu", "relu")
_EXPERTS_A_CALL = 64
"""More of them in one call make graphs that the compiler can't take.
Source: vllm-gaudi 091bbad, vllm_gaudi/extension/ops.py on MAX_EXPERTS_PER_SLICE."""


class RmsNorm(Kernel):
    """``lsv_runtime.nn.norm.RMSNorm`` by ``FusedRMSNorm``, which takes three axes."""

    def __init__(self, module: RMSNorm, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
        return self._ops.rms_norm(rows, self._module.weight, self._module.eps).view(x.shape)


class MixedExperts(MixingKernel):
    """``lsv_runtime.nn.moe.MoE`` over plain weights by ``mixture_of_experts``, which reads them where they are.

    In a compiled step a call takes some of the experts; op by op it must have all, and no graph is too large. Where
    experts are spread, a pair with one of another rank names the first place that no expert has. Compiled, a call looks
    at no such pair; op by op every place must be one of its list's, and that one computes what counts nothing.
    """

    keeps_parts = True

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()
        (self._activation,) = spec.flags & set(_ACTIVATIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, *self._module.router(x))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        module = self._module
        x, weights, experts = module.gather(x, weights, experts)
        weights, experts = _find_own(module, weights, experts)
        plain: Iterable[Any] = module.experts
        gate_up, down = zip(*((one.gate_up.linear.weight, one.down.linear.weight) for one in plain), strict=True)
        some = _EXPERTS_A_CALL
        if not torch.compiler.is_compiling():
            if module.spread is not None:
                gate_up, down = (*gate_up, gate_up[-1]), (*down, down[-1])
            some = len(down)
        y = self._ops.mix_experts(x, experts, weights, gate_up[:some], down[:some], self._activation)
        for first in range(some, len(down), some):
            part = slice(first, first + some)
            y = y + self._ops.mix_experts(x, experts, weights, gate_up[part], down[part], self._activation, first)
        return module.add_up(y)


class EveryExpert(MixingKernel):
    """``lsv_runtime.nn.moe.MoE`` of any format: every expert computes every token, and what was not asked for counts
    nothing.

    The reference gathers each expert's tokens, whose number no graph can know.
    """

    keeps_parts = True

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        self._module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, *self._module.router(x))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        module = self._module
        x, weights, experts = module.gather(x, weights, experts)
        weights, experts = _find_own(module, weights, experts)
        y = torch.zeros_like(x)
        for place, expert in enumerate(module.experts):
            share = torch.where(experts == place, weights, 0.0).sum(-1, keepdim=True)
            y = y + expert(x) * share
        return module.add_up(y)


def _find_own(module: MoE, weights: torch.Tensor, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and ids [T, top] of chosen experts -> the same by their places here; those of other ranks weigh nothing,
    and are behind the last place. Nothing waits for the device.
    """
    if module.spread is None:
        return weights, experts
    module.spread.count(experts)
    places = module.spread.table[experts]
    here = places >= 0
    return torch.where(here, weights, 0.0), torch.where(here, places, len(module.experts))


def why_not_mixed(spec: OpSpec) -> str | None:
    """None where ``mixture_of_experts`` serves a module."""
    if spec.format != "plain":
        return f"weights are {spec.format}"
    if "bias" in spec.flags:
        return "experts have biases"
    if not spec.flags & set(_ACTIVATIONS):
        return f"the activation is not one of {', '.join(_ACTIVATIONS)}"
    return None
