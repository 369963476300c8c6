"""A mixture of experts in one native call: routing, all experts' products and each token's sum."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_cpu.kernels import selected_library
from lsv_cpu.linear import (
    LinearRecord,
    OperandSizes,
    PanelMLP,
    find_operand_sizes,
    use_panels,
    why_not_gated,
    why_not_panels,
)
from lsv_runtime.nn.moe import MoE, Router
from lsv_runtime.ops import Kernel, MixingKernel
from lsv_runtime.weights.quantizer import Linear

_NO_SUCH_EXPERT = 3  # ``Status`` of native/team.h


class ExpertsRecord(ctypes.Structure):
    """``Experts`` of native/moe/moe.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "count", "top", "normalise")),
        *((name, ctypes.c_int64) for name in ("hidden", "inner")),
        *((name, ctypes.c_void_p) for name in ("router", "gate_up", "down")),
        ("operands", OperandSizes),
    ]


class NativeExperts(Kernel):
    """``lsv_runtime.nn.moe.MoE`` over the packed panels of its experts, which may be of different formats.

    ``lsv_runtime.nn.moe.Router`` itself is computed in the same call. Any other router is asked, and what it chooses
    computed.
    """

    keeps_parts = True

    def __init__(self, module: MoE, spec: OpSpec, *, routes: bool = True) -> None:
        """With ``routes`` false, the router is always asked."""
        self._module, self._library = module, selected_library()
        self.routes = routes and type(module.router) is Router
        for part in module.router.modules():
            if isinstance(part, Linear) and why_not_panels(part.spec()) is None:
                use_panels(part)
        self._experts = [PanelMLP(expert, expert.spec()) for expert in module.experts]
        for expert, kernel in zip(module.experts, self._experts, strict=True):
            expert.use(kernel)
        self.record = ExpertsRecord()

    def pack(self) -> None:
        """Called once the experts and the router have packed their weights."""
        count = len(self._experts)
        gate_up = (LinearRecord * count)(*(expert.gate_up.record for expert in self._experts))
        down = (LinearRecord * count)(*(expert.down.record for expert in self._experts))
        self._held = (gate_up, down)
        first, record = self._experts[0], self.record
        record.dtype, record.count = first.gate_up.record.dtype, count
        record.hidden, record.inner = first.gate_up.record.inputs, first.down.record.inputs
        record.gate_up, record.down = ctypes.addressof(gate_up), ctypes.addressof(down)
        record.operands = find_operand_sizes((*gate_up, *down))
        if self.routes:
            router: Any = self._module.router
            record.router = ctypes.addressof(router.logits.kernel.record)
            record.top, record.normalise = router.top, router.normalise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module, x = self._module, x.contiguous()
        if self.routes:
            y = self._run(x, None, None)
        else:
            weights, experts = module.router(x)
            y = self.compute(x, weights, experts)
        return y if module.communicator is None else module.communicator.all_reduce(y)

    def compute(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """What the chosen experts make of x [T, hidden], weighed: weights and ids [T, top] -> [T, hidden]."""
        self.record.top = experts.shape[1]
        return self._run(x, weights.contiguous(), experts.contiguous())

    def _run(self, x: torch.Tensor, weights: torch.Tensor | None, experts: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty_like(x)
        status = self._library.lsv_experts(
            ctypes.byref(self.record),
            x.data_ptr(),
            None if weights is None else weights.data_ptr(),
            None if experts is None else experts.data_ptr(),
            x.shape[0],
            out.data_ptr(),
        )
        if status == _NO_SUCH_EXPERT:
            raise IndexError(f"a router chose an expert that is not one of {len(self._experts)}")
        if status:
            raise native.refusal(status)
        return out


class NativeSpreadExperts(MixingKernel):
    """Experts of which this rank has some: only the pairs of a token with one of these are computed."""

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        assert module.spread is not None, "the op is that of spread experts"
        self._module, self._spread = module, module.spread
        self._experts = NativeExperts(module, spec, routes=False)

    def pack(self) -> None:
        self._experts.pack()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, *self._module.router(x))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        x, weights, experts = self._module.gather(x, weights, experts)
        self._spread.count(experts)
        numbers = self._spread.table[experts]
        rows, places = (numbers >= 0).nonzero(as_tuple=True)
        y = torch.zeros(x.shape, dtype=torch.float32)
        if len(rows):
            made = self._experts.compute(x[rows], weights[rows, places, None], numbers[rows, places, None])
            y.index_add_(0, rows, made.float())
        return self._module.add_up(y.to(x.dtype))


def why_not_experts(spec: OpSpec) -> str | None:
    """None, or why a mixture of experts can't be a single call."""
    if "bias" in spec.flags:
        return "has experts with biases"
    return why_not_gated(spec)
