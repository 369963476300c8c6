"""The native kernels of every instruction set here, and the plain torch ones, against the conformance suite."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_cpu import native, plugin
from lsv_cpu.attention import CpuAttention
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, check_row_invariance, cover_values
from suite.instruction_sets import RUNNABLE

DTYPES = ("bfloat16", "float32", "float16")
(OFFER,) = plugin.lsv_attention()
CASES = (
    *attention_cases(OFFER.block_sizes, DTYPES),
    *attention_cases(OFFER.block_sizes, DTYPES, head_dims=(64, 33), ratios=(7, 1), features=("biases", "pattern")),
)
KV_DTYPES = ("float8_e4m3fn", "float8_e5m2", "int8")
QUANTISED = attention_cases(
    OFFER.block_sizes,
    DTYPES,
    head_dims=(64, 33, 128),
    ratios=(7, 1, 4),
    features=("plain", "window+sinks", "window+soft_cap", "alibi", "values_in_keys"),
    kv_dtypes=KV_DTYPES,
)
FEW = [*cover_values(CASES), *cover_values(QUANTISED)]
OLDER = [isa for isa in RUNNABLE if isa in ("generic", "avx2", "avx512", "avx512_emulated")]
BFLOAT16_ROUNDING = 2.0**-9


def backend(kind: str) -> CpuAttention:
    if kind == "torch":
        native.select(enabled=False)
        return CpuAttention()
    library = native.load(kind)
    assert library is not None
    return CpuAttention(library)


@pytest.mark.row("F-373", "F-374", "F-376")
@pytest.mark.daily(kind=["auto"])
@pytest.mark.daily(case=FEW)
@pytest.mark.parametrize("case", [*CASES, *QUANTISED], ids=str)
@pytest.mark.parametrize("kind", ["auto", "torch"])
def test_conforms(kind: str, case: AttentionCase, device: Device) -> None:
    check_attention(backend(kind), device, case)


@pytest.mark.parametrize("kind", OLDER)
def test_older_instruction_sets_conform(kind: str, device: Device) -> None:
    for case in (*CASES[::7], *QUANTISED[::3]):
        check_attention(backend(kind), device, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *QUANTISED], ids=str)
@pytest.mark.parametrize("kind", OLDER)
def test_older_instruction_sets_conform_in_all_cases(kind: str, case: AttentionCase, device: Device) -> None:
    check_attention(backend(kind), device, case)


@pytest.mark.parametrize("case", [*CASES[::6], *QUANTISED[::4]], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_company(case: AttentionCase, device: Device) -> None:
    check_row_invariance(backend("auto"), device, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::6], ids=str)
@pytest.mark.parametrize("kind", OLDER)
def test_older_instruction_sets_are_row_invariant(kind: str, case: AttentionCase, device: Device) -> None:
    check_row_invariance(backend(kind), device, case)


@pytest.mark.row("F-374")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(3, 3, 20), (4, 1, 24), (1, 1, 512), (128, 1, 16), (2, 1, 33)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_odd_shapes_conform(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: Device) -> None:
    layer = AttentionLayer(0, heads, kv_heads, head_dim, head_dim**-0.5)
    plain, fast = backend("torch"), backend("auto")
    assert fast.supports(layer) is None
    found, wanted = (attend_in_chunks(one, layer, device, dtype=dtype) for one in (fast, plain))
    rounding = 1e-5 if dtype == torch.float32 else 4 * BFLOAT16_ROUNDING
    torch.testing.assert_close(found, wanted, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("head_dim", [64, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_native_code_and_python_agree_on_where_keys_and_values_lie(
    head_dim: int, dtype: torch.dtype, device: Device
) -> None:
    """What native code wrote, in two steps of odd lengths, reads the same in plain torch."""
    layer, group = AttentionLayer(0, 4, 2, head_dim, 0.1), KVGroup(0, "full", (0,), 8 * head_dim)
    fast, plain = backend("auto"), backend("torch")
    cache = fast.allocate(CacheSpec([group], [layer], 4, 16, dtype), device)
    table = (np.array([[2, 0, 3]], np.int32),)
    q, k, v = (torch.randn(38, heads, head_dim).to(dtype) for heads in (4, 2, 2))
    for start, stop in ((0, 17), (17, 38)):
        layout = BatchLayout(np.array([stop - start], np.int32), np.array([stop], np.int32), table)
        plan = fast.plan(layout, group)
        found = fast.attend(q[start:stop], k[start:stop], v[start:stop], layer, cache, plan)
    wanted = plain.attend(q[17:], None, None, layer, cache, plan)
    torch.testing.assert_close(found, wanted, rtol=4 * BFLOAT16_ROUNDING, atol=4 * BFLOAT16_ROUNDING)
    keys = cache.keys(layer)[[2, 0, 3]][:, :, cache.key_order(head_dim)].transpose(1, 2).flatten(0, 1)
    assert torch.equal(keys[:38], k)


def test_bfloat16_is_about_as_precise_as_torch(device: Device) -> None:
    """Weights are rounded to bfloat16 before they meet the values: no worse than twice the error of torch's own."""
    layer = AttentionLayer(0, 2, 2, 64, 0.125)
    q, k, v = (torch.randn(700, 2, 64, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3))
    attention = backend("auto")
    lengths = np.array([700], np.int32)
    plan = attention.plan(BatchLayout(lengths, lengths, ()), KVGroup(0, "full", (0,), 0))
    found = attention.attend(q, k, v, layer, None, plan)
    heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)[0].transpose(0, 1)
    exact = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in heads_first), is_causal=True)
    exact = exact[0].transpose(0, 1)
    assert (found - exact).norm() <= 2 * (theirs - exact).norm()


def test_what_it_can_not_serve_is_refused_with_the_reason(device: Device) -> None:
    attention = CpuAttention()
    assert "head size 1024" in (attention.supports(AttentionLayer(0, 1, 1, 1024, 1.0)) or "")
    assert "multiple" in (attention.supports(AttentionLayer(0, 3, 2, 64, 1.0)) or "")


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    found = native.load("auto")
    assert found is not None
    yield found
    found.lsv_set_team(1, None)


@pytest.mark.parametrize(
    ("length", "queries"), [(3000, 1), (3000, 40), (300, 1)], ids=("split context", "split tiles", "few tiles")
)
def test_threads_do_not_change_a_bit(length: int, queries: int, device: Device, library: ctypes.CDLL) -> None:
    """A long context is then cut between the members of the team; the order of adding up stays."""
    layer = AttentionLayer(0, 4, 2, 64, 0.125)
    results = []
    for threads in (1, 2, 5):
        library.lsv_set_team(threads, None)
        results.append(attend_in_chunks(CpuAttention(library), layer, device, length=length, queries=queries))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


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
    cache = attention.allocate(CacheSpec(groups, layers, 5, 16, torch.float32), device)
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
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The last ``queries`` outputs of a request whose earlier tokens came in a step of their own."""
    source = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(length, heads, layer.head_dim, generator=source).to(dtype)
        for heads in (layer.heads, layer.kv_heads, layer.kv_heads)
    )
    group = KVGroup(0, "full", (0,), 8 * layer.kv_heads * layer.head_dim)
    pages = -(-length // block_size)
    cache = attention.allocate(CacheSpec([group], [layer], pages + 1, block_size, dtype), device)
    table = np.arange(pages, 0, -1, dtype=np.int32)[None]
    out = torch.empty(0)
    for start, stop in ((0, length - queries), (length - queries, length)):
        layout = BatchLayout(np.array([stop - start], np.int32), np.array([stop], np.int32), (table,))
        out = attention.attend(q[start:stop], k[start:stop], v[start:stop], layer, cache, attention.plan(layout, group))
    return out
