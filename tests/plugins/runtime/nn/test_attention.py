"""Attention finds its heads of q, k and v in one tensor as in three, on every rank."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from lsv_runtime.nn.attention import Attention, Heads
from lsv_testing.tensors import TensorsSource, fill_module, place

DIM = 4


@dataclass(frozen=True)
class Sizes:
    hidden_size: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = DIM
    norm_eps: float = 1e-6
    windows: tuple = (None,)


def separate():
    """q, k and v, [heads, dim, hidden] each."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(count, DIM, 8, generator=draw) for count in (8, 2, 2)]


def stacked(q, k, v):
    return torch.cat((q, k, v))


def grouped(q, k, v):
    """As InternLM 2 stores them: rearranged as (kv head, 2 + queries of each)."""
    return torch.cat((q.unflatten(0, (2, 4)), k[:, None], v[:, None]), dim=1).flatten(0, 1)


@pytest.mark.parametrize(("find", "store"), [(Heads.stacked, stacked), (Heads.grouped, grouped)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_heads_of_one_tensor_are_those_of_three(find, store, size):
    q, k, v = separate()
    three = TensorsSource({f"{name}_proj.weight": x.flatten(0, 1) for name, x in zip("qkv", (q, k, v), strict=True)})
    one = TensorsSource({"packed.weight": store(q, k, v).flatten(0, 1)})
    for rank in range(size):
        made = []
        for source, fused in ((three, None), (one, partial(find, name="packed"))):
            w = place(rank=rank, size=size)
            attention = Attention(w, Sizes(), 0, None, fused=fused)
            w.declaration.slots.pop()  # of the output projection
            made.append(fill_module(attention, w, source).qkv.linear.weight)
        assert torch.equal(*made)


def test_a_scale_and_a_cap_reach_the_backend():
    layer = Attention(place(), Sizes(), 0, None, scale=0.3, cap=5.0).layer
    assert (layer.scale, layer.soft_cap) == (0.3, 5.0)
    assert Attention(place(), Sizes(), 0, None).layer.scale == DIM**-0.5
