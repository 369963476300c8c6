"""The backend ``hpu-flat`` against the conformance suite, and what graphs of fixed shapes ask of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_hpu.attention.backend import FlatAttention
from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.emulation.platform import EmulatedHpu
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.emulation.recording import Recording
from lsv_runtime.emulation.vendors.onednn import leaky_products
from lsv_testing.attention import AttentionCase, attention_cases, check_attention
from lsv_testing.layouts import Padded

pytestmark = pytest.mark.onednn

DTYPES = ("bfloat16", "float32")
CASES = attention_cases((16, 32), DTYPES, head_dims=(64, 128, 80), ratios=(7, 1, 4))
LARGE = attention_cases((128, 256), DTYPES, head_dims=(64, 256), ratios=(4, 1))
CODED = attention_cases(
    (16, 32),
    DTYPES,
    head_dims=(64, 33),
    ratios=(4, 1),
    features=("plain", "window+sinks", "alibi"),
    kv_dtypes=("float8_e4m3fn",),
)


@pytest.fixture
def device() -> Device:
    class Host:
        torch_device = torch.device("cpu")

    return Host()  # type: ignore[return-value]


def layout(block_size: int, junk: float) -> Padded:
    """``blocks`` beyond what a step needs: of single tokens those of all rows, of prompts the longest context's."""

    def blocks(query: Int32s, context: Int32s) -> int:
        if query.max() == 1:
            return int((-(-context // block_size)).sum()) + 3
        before = -(-int((context - query).max()) // block_size)
        return before + 2 if before else 0

    return Padded(junk, blocks)


@pytest.mark.parametrize("case", [*CASES, *CODED], ids=str)
def test_conforms(case: AttentionCase, device: Device) -> None:
    junk = torch.nan if case.feature == "plain" else 3e4
    check_attention(FlatAttention(fake_ops(), fused=True), device, case, layout=layout(case.block_size, junk))


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_conforms_in_large_blocks(case: AttentionCase, device: Device) -> None:
    check_attention(FlatAttention(fake_ops(), fused=True), device, case, layout=layout(case.block_size, torch.nan))


@pytest.mark.parametrize("size", [64, 128, 256])
def test_conforms_in_large_blocks_of_small_heads(size: int, device: Device) -> None:
    case, lengths = AttentionCase("float32", 16, 2, size, "window+sinks"), (1, size - 1, size, size + 1)
    attention = FlatAttention(fake_ops(), fused=True)
    check_attention(attention, device, case, layout=layout(size, torch.nan), lengths=lengths)


@pytest.mark.row("F-542")
@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_conforms_without_the_fused_kernel(case: AttentionCase, device: Device) -> None:
    ops = fake_ops()
    check_attention(FlatAttention(ops, fused=False), device, case, layout=layout(case.block_size, torch.nan))
    assert not ops.sdpa.calls


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "bfloat16"][:2], ids=str)
def test_padding_that_is_not_finite_spoils_nothing_with_amx(case: AttentionCase, device: Device) -> None:
    attention = FlatAttention(fake_ops(), fused=False)
    with leaky_products():
        check_attention(attention, device, case, layout=layout(case.block_size, torch.nan))


def one_layer(**changes: object) -> AttentionLayer:
    return AttentionLayer(0, 4, 2, 16, 0.25, **changes)  # type: ignore[arg-type]


def batch(query: list[int], context: list[int], tables: list[list[int]], *, span: int, blocks: int) -> BatchLayout:
    width = max(map(len, tables))
    table = np.array([row + [0] * (width - len(row)) for row in tables], np.int32)
    return BatchLayout(np.array(query, np.int32), np.array(context, np.int32), (table,), span, blocks)


STEPS = {
    "tokens": (
        batch([1, 1, 1], [20, 3, 1], [[3, 1], [2], [0]], span=1, blocks=8),
        batch([1, 1, 1], [17, 33, 40], [[4, 5], [6, 2, 1], [7, 8, 3]], span=1, blocks=8),
    ),
    "prompts": (
        batch([5, 1, 1], [5, 1, 1], [[3], [2], [0]], span=16, blocks=0),
        batch([16, 9, 2], [16, 9, 2], [[4], [6], [7]], span=16, blocks=0),
    ),
    "prompts with context": (
        batch([5, 1, 1], [21, 1, 1], [[3, 4], [2], [0]], span=16, blocks=2),
        batch([16, 9, 2], [48, 9, 30], [[4, 5, 2], [6], [7, 8]], span=16, blocks=2),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("feature", [{}, {"sinks": torch.ones(4), "window": 20, "soft_cap": 2.0}], ids=("plain", "all"))
@pytest.mark.parametrize("kind", STEPS)
def test_a_graph_of_one_batch_serves_others_of_its_shape(
    kind: str, feature: dict[str, object], dtype: torch.dtype, device: Device
) -> None:
    """What is captured for one batch is replayed for another, after its plan was refilled in place."""
    layer, group = one_layer(**feature), KVGroup(0, "full", (0,), 0, feature.get("window"))  # type: ignore[arg-type]
    attention = FlatAttention(fake_ops(), fused=True)
    cache = attention.allocate(CacheSpec([group], [layer], 9, 16, dtype), device)
    for store in (*cache.keys, *cache.values):
        store.copy_(torch.randn(store.shape))
    first, second = STEPS[kind]
    q, k, v = (torch.randn(first.tokens, heads, 16) for heads in (4, 2, 2))
    plan, recording = attention.plan(first, group), Recording()
    with recording.capture():
        out = attention.attend(q, k, v, layer, cache, plan)
    again = attention.plan(second, group, into=plan)
    for name in again.__slots__:
        assert getattr(again, name) is getattr(plan, name), f"{name} has moved"
    q.copy_(torch.randn(q.shape))
    recording.replay()
    replayed = out.clone()
    wanted = attention.attend(q, k, v, layer, cache, attention.plan(second, group))
    torch.testing.assert_close(replayed, wanted)


@pytest.mark.parametrize("kind", STEPS)
def test_a_plan_is_sent_in_one_copy(kind: str) -> None:
    """Without pinned memory the host waits for each."""
    placed = placement()
    if placed is None:
        pytest.skip("there is no C++ compiler")
    device, group = EmulatedHpu().open(0, {}), KVGroup(0, "full", (0,), 0)
    attention = FlatAttention(fake_ops(), fused=True)
    attention.allocate(CacheSpec([group], [one_layer()], 9, 16, torch.float32), device)
    first, second = STEPS[kind]
    before = placed.waits
    plan = attention.plan(first, group)
    assert placed.waits == before + 1
    attention.plan(second, group, into=plan)
    assert placed.waits == before + 2
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("feature", [{}, {"sinks": torch.ones(4), "window": 20, "soft_cap": 2.0}], ids=("plain", "all"))
@pytest.mark.parametrize("kind", STEPS)
def test_torch_compiles_a_step_as_one_graph(
    kind: str, feature: dict[str, object], dtype: torch.dtype, device: Device
) -> None:
    layer, group = one_layer(**feature), KVGroup(0, "full", (0,), 0, feature.get("window"))  # type: ignore[arg-type]
    attention = FlatAttention(fake_ops(), fused=True)
    cache = attention.allocate(CacheSpec([group], [layer], 9, 16, dtype), device)
    step = STEPS[kind][1]
    q, k, v = (torch.randn(step.tokens, heads, 16) for heads in (4, 2, 2))
    plan = attention.plan(step, group)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda: attention.attend(q, k, v, layer, cache, plan), backend="eager", fullgraph=True, dynamic=False
    )
    torch.testing.assert_close(compiled(), attention.attend(q, k, v, layer, cache, plan))


def test_a_row_with_nan_harms_no_other(device: Device) -> None:
    layer, group = one_layer(), KVGroup(0, "full", (0,), 0)
    attention = FlatAttention(fake_ops())
    cache = attention.allocate(CacheSpec([group], [layer], 9, 16, torch.float32), device)
    q, k, v = (torch.randn(3, heads, 16) for heads in (4, 2, 2))
    plan = attention.plan(STEPS["tokens"][1], group)
    wanted = attention.attend(q, k, v, layer, cache, plan)
    q[1], k[1], v[1] = torch.nan, torch.nan, torch.nan
    found = attention.attend(q, k, v, layer, cache, plan)
    assert torch.equal(found[[0, 2]], wanted[[0, 2]])
    assert found[1].isnan().all()


def test_prompts_go_through_the_fused_kernel_where_it_has_what_they_ask(device: Device) -> None:
    plain, capped = one_layer(), one_layer(soft_cap=2.0)
    ops, group = fake_ops(), KVGroup(0, "full", (0,), 0)
    attention = FlatAttention(ops, fused=True)
    cache = attention.allocate(CacheSpec([group], [plain], 9, 16, torch.float32), device)
    for number, kind in enumerate(("prompts", "prompts with context"), start=1):
        step = STEPS[kind][1]
        q, k, v = (torch.randn(step.tokens, heads, 16) for heads in (4, 2, 2))
        for layer in (plain, capped):
            attention.attend(q, k, v, layer, cache, attention.plan(step, group))
        assert ops.sdpa.calls["apply"] == number
    (_, (_, _, first_causal, first_mask)), (_, (_, _, then_causal, then_mask)) = ops.sdpa.log
    assert (first_causal, first_mask, then_causal, then_mask) == (True, False, False, True)


def test_layers_and_groups_share_pages_without_touching_each_other(device: Device) -> None:
    """Two groups with layers of different widths; each writes the pages it owns and reads back what it wrote."""
    attention = FlatAttention(fake_ops())
    layers = [
        AttentionLayer(0, 2, 2, 32, 1.0),
        AttentionLayer(1, 2, 1, 64, 1.0, place=1),
        AttentionLayer(2, 2, 2, 80, 1.0, window=8, group=1),
    ]
    groups = [KVGroup(0, "full", (0, 1), 0), KVGroup(1, "window", (2,), 0, 8)]
    cache = attention.allocate(CacheSpec(groups, layers, 5, 16, torch.float32), device)
    tables = (np.array([[3, 1]], np.int32), np.array([[2, 4]], np.int32))
    layout = BatchLayout(np.array([20], np.int32), np.array([20], np.int32), tables, span=24)
    wrote = {}
    for layer in layers:
        q, k, v = (torch.randn(24, heads, layer.head_dim) for heads in (2, layer.kv_heads, layer.kv_heads))
        plan = attention.plan(layout, groups[layer.group])
        wrote[layer.index] = q, plan, attention.attend(q, k, v, layer, cache, plan)
    for layer in layers:
        q, plan, before = wrote[layer.index]
        found = attention.attend(q, None, None, layer, cache, plan)
        torch.testing.assert_close(found[:20], before[:20])


def test_what_it_can_not_serve_is_refused_with_the_reason() -> None:
    assert "multiple" in (FlatAttention(fake_ops()).supports(AttentionLayer(0, 3, 2, 64, 1.0)) or "")
