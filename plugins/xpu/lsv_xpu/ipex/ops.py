"""Kernels over the functions of ``ipex.llm.functional``."""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_runtime.nn.mlp import GatedActivation
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Kernel
from lsv_xpu import libraries
from lsv_xpu.ipex.calls import Ipex

_GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_FLOATS = ("float16", "bfloat16", "float32")


class RmsNorm(Kernel):
    """``lsv_runtime.nn.norm.RMSNorm`` over x [..., size]."""

    def __init__(self, module: RMSNorm, spec: OpSpec) -> None:
        self._module, self._library = module, _library()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._library.rms_norm(x, self._module.weight, self._module.eps)


class GatedProduct(Kernel):
    """``lsv_runtime.nn.mlp.GatedActivation`` over x [..., 2 * size], for silu and gelu."""

    def __init__(self, module: GatedActivation, spec: OpSpec) -> None:
        self._library, self._approximate = _library(), _GELUS.get(module.name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        if self._approximate is None:
            return self._library.silu_mul(gate, up)
        return self._library.gelu_mul(gate, up, self._approximate)


class Rotate(Kernel):
    """``lsv_runtime.nn.rope.Rope`` over heads [T, any, head_dim]. IPEX turns two tensors in place, so it gets copies of
    the first head and of the others.
    """

    def __init__(self, module: Rope, spec: OpSpec) -> None:
        self._module, self._library, self._dim = module, _library(), spec.shape["rotary_dim"]

    def pack(self) -> None:
        half, table = self._dim // 2, self._module.table.float()
        self._cos = self._module.keep("cos", table[:, :half].contiguous())
        self._sin = self._module.keep("sin", table[:, -half:].contiguous())

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        first, others = (part.clone(memory_format=torch.contiguous_format) for part in heads.tensor_split((1,), dim=1))
        sin, cos = self._sin[positions], self._cos[positions]
        others, first = self._library.rotary_embedding(others, first, sin, cos, self._dim)
        return torch.cat((first, others), dim=1)


def _library() -> Ipex:
    found: Ipex = libraries.obtain(libraries.IPEX)
    return found


def why_not_ipex(spec: OpSpec) -> str | None:
    """None, or why IPEX can't serve an op."""
    missing = libraries.why_not(libraries.IPEX)
    if missing is not None:
        return f"lacks {missing}"
    if spec.dtype not in _FLOATS:
        return f"{spec.dtype} is not one of {', '.join(_FLOATS)}"
    if spec.op == "rope" and spec.shape["rotary_dim"] != spec.shape["head_dim"]:
        return "it turns whole heads only"
    return None
