"""A decoder layer whose norms, rotation and attention are ops of vllm_xpu_kernels, in as few launches as they allow."""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import CarryingKernel
from lsv_xpu import libraries
from lsv_xpu.vllm.calls import VllmKernels
from lsv_xpu.vllm.ops import Rotate


class VllmLayer(CarryingKernel):
    """``lsv_runtime.nn.decoder.DecoderLayer``: x [T, hidden] -> [T, hidden], for x that nobody reads afterwards.

    Both residual sums are one launch with the norm after them, in place, of which the second is the next layer's. q and
    k are turned where the projection has put them.
    """

    composite = True  # projections, the first norm, the rotation's table and the MLP are the modules they are

    def __init__(self, module: DecoderLayer, spec: OpSpec) -> None:
        self._module = module
        self._library: VllmKernels = libraries.obtain(libraries.VLLM)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x, change = self.carry(x, None, step)
        return x + change

    def carry(self, x: torch.Tensor, change: torch.Tensor | None, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._module
        normed = layer.before_attn(x) if change is None else self._add_and_norm(x, change, layer.before_attn)
        normed = self._add_and_norm(x, _attend(layer.attn, normed, step), layer.before_mlp)
        return x, layer.mlp(normed)

    def _add_and_norm(self, x: torch.Tensor, change: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        """``x`` becomes the sum; the sum normed, in the memory of ``change``."""
        self._library.fused_add_rms_norm(change, x, norm.weight, norm.eps)
        return change


def _attend(attn: Attention, x: torch.Tensor, step: Step) -> torch.Tensor:
    """``attn.reference`` with q and k turned in place."""
    qkv = attn.qkv(x).view(-1, attn.heads + 2 * attn.kv_heads, attn.head_dim)
    q, k, v = qkv.split((attn.heads, attn.kv_heads, attn.kv_heads), dim=1)
    if attn.q_norm is not None and attn.k_norm is not None:
        q, k = attn.q_norm(q), attn.k_norm(k)
    rotate = attn.rope.kernel
    assert isinstance(rotate, Rotate), "the package that offers the layer offers the rotation"
    rotate.turn(step.positions[0], q, k)
    layer = attn.layer
    attended = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
    return attn.out(attended.flatten(1))  # type: ignore[no-any-return]
