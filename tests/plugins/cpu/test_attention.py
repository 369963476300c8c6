"""The native kernels of every instruction set here, and the plain torch ones, against the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lsv.attention import AttentionLayer, BatchLayout
from lsv.kv.spec import KVGroup
from lsv.platform import Device
from lsv.testing.attention import AttentionCase, attention_cases, check_attention, check_row_invariance
from lsv_cpu import native
from lsv_cpu.attention import CpuAttention
from lsv_cpu.machine import Machine

DTYPES = ("bfloat16", "float32", "float16")
CASES = attention_cases(CpuAttention.block_sizes, DTYPES)
ISAS = tuple(isa for isa in ("generic", "avx2", "avx512") if isa in (*Machine().instruction_sets(), "generic"))


def backend(kind: str) -> CpuAttention:
    if kind == "torch":
        native.select(enabled=False)
        return CpuAttention()
    library = native.load(kind)
    assert library is not None
    return CpuAttention(library)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", [ISAS[-1], "torch"])
def test_conforms(kind: str, case: AttentionCase, device: Device) -> None:
    check_attention(backend(kind), device, case)


@pytest.mark.parametrize("kind", ISAS[:-1])
def test_older_instruction_sets_conform(kind: str, device: Device) -> None:
    for case in CASES[::7]:
        check_attention(backend(kind), device, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ISAS[:-1])
def test_older_instruction_sets_conform_in_all_cases(kind: str, case: AttentionCase, device: Device) -> None:
    check_attention(backend(kind), device, case)


@pytest.mark.parametrize("case", CASES[::6], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_company(case: AttentionCase, device: Device) -> None:
    check_row_invariance(backend(ISAS[-1]), device, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::6], ids=str)
@pytest.mark.parametrize("kind", ISAS[:-1])
def test_older_instruction_sets_are_row_invariant(kind: str, case: AttentionCase, device: Device) -> None:
    check_row_invariance(backend(kind), device, case)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 3, 20), (4, 1, 24), (1, 1, 512), (128, 1, 16)])
def test_odd_shapes_conform(heads: int, kv_heads: int, head_dim: int, device: Device) -> None:
    layer = AttentionLayer(0, heads, kv_heads, head_dim, head_dim**-0.5)
    plain, fast = backend("torch"), backend(ISAS[-1])
    assert fast.supports(layer) is None
    torch.testing.assert_close(attend_in_chunks(fast, layer, device), attend_in_chunks(plain, layer, device))


def test_what_it_can_not_serve_is_refused_with_the_reason(device: Device) -> None:
    attention = CpuAttention()
    assert "head size 1024" in (attention.supports(AttentionLayer(0, 1, 1, 1024, 1.0)) or "")
    assert "multiple" in (attention.supports(AttentionLayer(0, 3, 2, 64, 1.0)) or "")


@pytest.fixture
def many_threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


@pytest.mark.parametrize("queries", [1, 40], ids=("split context", "split tiles"))
def test_threads_do_not_change_a_bit(queries: int, device: Device, many_threads: int) -> None:
    """A long context is then cut between the threads; the order of adding up stays."""
    layer = AttentionLayer(0, 4, 2, 64, 0.125)
    threaded = attend_in_chunks(backend("auto"), layer, device, length=3000, queries=queries)
    torch.set_num_threads(1)
    assert torch.equal(attend_in_chunks(backend("auto"), layer, device, length=3000, queries=queries), threaded)


def test_results_do_not_depend_on_the_block_size(device: Device) -> None:
    layer = AttentionLayer(0, 4, 2, 64, 0.125)
    results = [attend_in_chunks(backend("auto"), layer, device, block_size=size) for size in (16, 32, 64, 128)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_heads_of_a_fused_projection_are_read_where_they_lie(device: Device) -> None:
    layer = AttentionLayer(0, 4, 2, 64, 0.125)
    attention = backend("auto")
    q, k, v = torch.randn(9, 8, 64).split((4, 2, 2), dim=1)
    plan = attention.plan(
        BatchLayout(np.array([9], np.int32), np.array([9], np.int32), ()), KVGroup(0, "full", (0,), 0)
    )
    wanted = attention.attend(q.contiguous(), k.contiguous(), v.contiguous(), layer, None, plan)
    assert torch.equal(attention.attend(q, k, v, layer, None, plan), wanted)
    sparse = torch.randn(9, 4, 128)[..., ::2]
    wanted = attention.attend(sparse.contiguous(), k, v, layer, None, plan)
    assert torch.equal(attention.attend(sparse, k, v, layer, None, plan), wanted)


def test_layers_and_groups_share_a_pool_without_touching_each_other(device: Device) -> None:
    """Two groups with layers of different sizes; each writes the pages it owns and reads back what it wrote."""
    attention = backend("auto")
    layers = [
        AttentionLayer(0, 2, 2, 32, 1.0),
        AttentionLayer(1, 2, 1, 64, 1.0, place=1),
        AttentionLayer(2, 2, 2, 80, 1.0, window=8, group=1),
    ]
    groups = [KVGroup(0, "full", (0, 1), 0), KVGroup(1, "window", (2,), 0, 8)]
    cache = attention.allocate(groups, layers, 5, 16, torch.float32, device)
    tables = (np.array([[3, 1]], np.int32), np.array([[2, 4]], np.int32))
    layout = BatchLayout(np.array([20], np.int32), np.array([20], np.int32), tables)
    wrote = {}
    for layer in layers:
        q, k, v = (torch.randn(20, heads, layer.head_dim) for heads in (2, layer.kv_heads, layer.kv_heads))
        plan = attention.plan(layout, groups[layer.group])
        wrote[layer.index] = q, plan, attention.attend(q, k, v, layer, cache, plan)
    for layer in layers:
        q, plan, before = wrote[layer.index]
        assert torch.equal(attention.attend(q, None, None, layer, cache, plan), before)


def attend_in_chunks(
    attention: CpuAttention,
    layer: AttentionLayer,
    device: Device,
    *,
    length: int = 70,
    queries: int = 33,
    block_size: int = 32,
) -> torch.Tensor:
    """The last ``queries`` outputs of a request whose earlier tokens came in a step of their own."""
    source = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(length, heads, layer.head_dim, generator=source)
        for heads in (layer.heads, layer.kv_heads, layer.kv_heads)
    )
    group = KVGroup(0, "full", (0,), 8 * layer.kv_heads * layer.head_dim)
    pages = -(-length // block_size)
    cache = attention.allocate([group], [layer], pages + 1, block_size, torch.float32, device)
    table = np.arange(pages, 0, -1, dtype=np.int32)[None]
    out = torch.empty(0)
    for start, stop in ((0, length - queries), (length - queries, length)):
        layout = BatchLayout(np.array([stop - start], np.int32), np.array([stop], np.int32), (table,))
        out = attention.attend(q[start:stop], k[start:stop], v[start:stop], layer, cache, attention.plan(layout, group))
    return out
