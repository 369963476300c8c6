"""A decoder layer whose parts keep kernels of their own, with what lies between them fused."""

from __future__ import annotations

import torch

from lsv.nn.attention import Attention
from lsv.nn.decoder import DecoderLayer
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv_triton.layers.norm import add_rms_norm
from lsv_triton.layers.rope import turn_heads


class FusedLayer(Kernel):
    """``lsv.nn.decoder.DecoderLayer``: x [T, hidden] -> [T, hidden].

    The residual sum and the norm after it are one launch, and so are the norms and the rotation of q and k.
    """

    composite = True  # projections, the first norm and the MLP are called as the modules they are

    def __init__(self, module: DecoderLayer, spec: OpSpec) -> None:
        self._module = module

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer, norm = self._module, self._module.before_mlp
        attended = _attend(layer.attn, layer.before_attn(x), step)
        x, normed = add_rms_norm(x, attended, norm.weight, norm.eps)
        return x + layer.mlp(normed)  # type: ignore[no-any-return]


def _attend(attn: Attention, x: torch.Tensor, step: Step) -> torch.Tensor:
    """``attn.reference`` with one launch between the projection and the backend; its own kernel where it has one."""
    if attn.kernel is not None:
        return attn(x, step)  # type: ignore[no-any-return]
    rotated, layer = attn.heads + attn.kv_heads, attn.layer
    qkv = attn.qkv(x).view(-1, rotated + attn.kv_heads, attn.head_dim)
    norms = (attn.q_norm, attn.k_norm, attn.heads) if attn.q_norm is not None and attn.k_norm is not None else None
    qk = turn_heads(qkv[:, :rotated], step.positions[0], attn.rope, norms)
    attended = step.backend.attend(
        qk[:, : attn.heads], qk[:, attn.heads :], qkv[:, rotated:], layer, step.cache, step.attention[layer.group]
    )
    return attn.out(attended.flatten(1))  # type: ignore[no-any-return]
