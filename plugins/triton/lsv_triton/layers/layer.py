"""A decoder layer whose parts keep kernels of their own, with what lies between them fused."""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import CarryingKernel
from lsv_triton.attention.cache import KVCache
from lsv_triton.layers.norm import add_rms_norm
from lsv_triton.layers.rope import turn_heads
from lsv_triton.layers.rope_write import turn_and_write


class FusedLayer(CarryingKernel):
    """``lsv_runtime.nn.decoder.DecoderLayer``: x [T, hidden] -> [T, hidden].

    Both residual sums are one launch with the norm after them, of which the second is the next layer's. So are the
    norms and the rotation of q and k, and where the cache is this package's, putting k and v into it.
    """

    composite = True  # projections, the first norm and the MLP are called as the modules they are

    def __init__(self, module: DecoderLayer, spec: OpSpec) -> None:
        self._module = module

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x, change = self.carry(x, None, step)
        return x + change

    def carry(self, x: torch.Tensor, change: torch.Tensor | None, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        layer, norm = self._module, self._module.before_mlp
        if change is None:
            normed = layer.before_attn(x)
        else:
            x, normed = add_rms_norm(x, change, layer.before_attn.weight, layer.before_attn.eps)
        x, normed = add_rms_norm(x, _attend(layer.attn, normed, step), norm.weight, norm.eps)
        return x, layer.mlp(normed)


def _attend(attn: Attention, x: torch.Tensor, step: Step) -> torch.Tensor:
    """``attn.reference`` with one launch between the projection and the backend; its own kernel where it has one."""
    if attn.kernel is not None:
        return attn(x, step)  # type: ignore[no-any-return]
    rotated, layer = attn.heads + attn.kv_heads, attn.layer
    qkv = attn.qkv(x).view(-1, rotated + attn.kv_heads, attn.head_dim)
    norms = (attn.q_norm, attn.k_norm, attn.heads) if attn.q_norm is not None and attn.k_norm is not None else None
    plan, positions = step.attention[layer.group], step.positions[0]
    if isinstance(step.cache, KVCache) and isinstance(plan, PagedPlan):
        q = turn_and_write(qkv, positions, attn.rope, norms, layer, step.cache, plan)
        attended = step.backend.attend(q, None, None, layer, step.cache, plan)
    else:
        qk, v = turn_heads(qkv[:, :rotated], positions, attn.rope, norms), qkv[:, rotated:]
        attended = step.backend.attend(qk[:, : attn.heads], qk[:, attn.heads :], v, layer, step.cache, plan)
    return attn.out(attended.flatten(1))  # type: ignore[no-any-return]
