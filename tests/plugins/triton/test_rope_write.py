"""One launch from the projection to attention, against those it stands for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.weights.checkpoint import DummySource
from lsv_testing.tensors import fill_module
from lsv_testing.tensors import place as weights_at
from lsv_triton.attention.backend import TritonAttention
from lsv_triton.attention.cache import KVCache
from lsv_triton.layers.rope import turn_heads
from lsv_triton.layers.rope_write import turn_and_write

HEADS, KV_HEADS, TOKENS, BLOCK = 4, 2, 21, 16


def make_step(
    stored: torch.dtype, dim: int, place: Device
) -> tuple[TritonAttention, KVCache, PagedPlan, AttentionLayer]:
    """A backend, an empty cache of its, and the plan of a prompt of 20 tokens beside a decoded one."""
    layer = AttentionLayer(1, HEADS, KV_HEADS, dim, 0.1, place=1, key_scale=0.5, value_scale=0.25)
    group = KVGroup(0, "full", (0, 1), token_bytes(layer, stored))
    backend, layers = TritonAttention(), [replace(layer, index=0, place=0), layer]
    cache = backend.allocate(CacheSpec([group], layers, 6, BLOCK, stored), place)
    for piece in cache.pieces:
        piece.fill_(0)
    table = np.array([[3, 1], [5, 2]], np.int32)
    layout = BatchLayout(np.array([20, 1], np.int32), np.array([20, 18], np.int32), (table,))
    return backend, cache, backend.plan(layout, group), layer


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(
    ("dtype", "stored", "dim", "rotary"),
    [
        ("float32", "float32", 64, 64),
        ("bfloat16", "bfloat16", 80, 20),
        ("float16", "int8", 64, 32),
        ("bfloat16", "float8_e4m3fn", 128, 128),
        ("float16", "float8_e5m2", 80, 80),
    ],
)
def test_it_does_what_two_launches_do(
    dtype: str, stored: str, dim: int, rotary: int, normed: bool, place: Device
) -> None:
    floats, device = getattr(torch, dtype), place.torch_device
    w = weights_at(dtype=floats, device=device)
    config = RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=rotary, length=99, original_length=99, parameters={}
    )
    parts = torch.nn.ModuleList([RMSNorm(w / "q", dim, 1e-6), RMSNorm(w / "k", dim, 1e-5), Rope(w, config, 99)])
    q_norm, k_norm, rope = fill_module(parts, w, DummySource(w.declaration.slots))
    norms = (q_norm, k_norm, HEADS) if normed else None
    fused = 3 * torch.randn(TOKENS, HEADS + 2 * KV_HEADS, dim, dtype=floats, device=device)
    positions = torch.cat((torch.arange(20), torch.tensor([17]))).to(device)

    backend, cache, plan, layer = make_step(getattr(torch, stored), dim, place)
    qk = turn_heads(fused[:, : HEADS + KV_HEADS], positions, rope, norms)
    backend.write(qk[:, HEADS:], fused[:, HEADS + KV_HEADS :], layer, cache, plan)
    _, other, plan, _ = make_step(getattr(torch, stored), dim, place)
    q = turn_and_write(fused, positions, rope, norms, layer, other, plan)
    assert torch.equal(q, qk[:, :HEADS])
    assert any(bool(piece.any()) for piece in cache.pieces)
    assert all(torch.equal(*pieces) for pieces in zip(cache.pieces, other.pieces, strict=True))


def test_the_rest_of_a_wider_projection_is_left_alone(place: Device) -> None:
    """Rows of the projection may be longer than its heads."""
    dim, device = 64, place.torch_device
    w = weights_at(dtype=torch.float32, device=device)
    config = RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=dim, length=99, original_length=99, parameters={}
    )
    rope = fill_module(Rope(w, config, 99), w, DummySource(w.declaration.slots))
    wide = torch.randn(TOKENS, HEADS + 2 * KV_HEADS + 1, dim, device=device)
    positions = torch.arange(TOKENS, device=device)
    caches = []
    for qkv in (wide[:, :-1], wide[:, :-1].contiguous()):
        _, cache, plan, layer = make_step(torch.float32, dim, place)
        turn_and_write(qkv, positions, rope, None, layer, cache, plan)
        caches.append(cache)
    assert all(torch.equal(*pieces) for pieces in zip(*(cache.pieces for cache in caches), strict=True))
