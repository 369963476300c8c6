"""The reference attention backend against torch's own attention with explicit masks."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.dense import DenseAttention, attend_dense
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, cover_values

DIM = 8
CASES = (
    *attention_cases((4, 16), ("float32", "bfloat16"), head_dims=(64, 33)),
    *attention_cases((4, 16), ("float32",), head_dims=(64,), ratios=(1, 2), features=("pattern",)),
)


def layer(heads=4, kv_heads=2, **changes):
    return AttentionLayer(0, heads, kv_heads, DIM, DIM**-0.5, **changes)


def row(query, context, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(query * 100 + context)
    shapes = ((query, heads, DIM), (context, kv_heads, DIM), (context, kv_heads, DIM))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def torchs(q, k, v, bias):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)[0].transpose(0, 1)


def causal(query, context, window=None):
    behind = torch.arange(context - query, context)[:, None] - torch.arange(context)[None]
    seen = (behind >= 0) & (behind < (window or context + 1))
    return torch.zeros(query, context).masked_fill(~seen, -torch.inf), behind


@pytest.mark.row("F-376")
@pytest.mark.parametrize(("query", "context"), [(1, 1), (7, 7), (1, 20), (5, 20)])
@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_masks_equal_torchs(query, context, window, heads):
    q, k, v = row(query, context, *heads)
    found = attend_dense(q, k, v, layer(*heads, window=window))
    torch.testing.assert_close(found, torchs(q, k, v, causal(query, context, window)[0]), rtol=1e-5, atol=1e-5)


def test_not_causal_sees_everything():
    q, k, v = row(3, 9)
    found = attend_dense(q, k, v, layer(causal=False))
    torch.testing.assert_close(found, torchs(q, k, v, torch.zeros(3, 9)), rtol=1e-5, atol=1e-5)


@pytest.mark.row("F-374")
def test_alibi_adds_a_slope():
    q, k, v = row(3, 9)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    mask, behind = causal(3, 9)
    found = attend_dense(q, k, v, layer(alibi=slopes))
    expected = torchs(q, k, v, mask - slopes[:, None, None] * behind)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def by_hand(q, k, v, scores_to_weights):
    out = torch.empty_like(q)
    for head in range(4):
        scores = q[:, head] @ k[:, head // 2].T * DIM**-0.5
        out[:, head] = scores_to_weights(scores, head) @ v[:, head // 2]
    return out


def test_soft_cap_bounds_scores():
    q, k, v = row(3, 9)
    mask = causal(3, 9)[0]
    expected = by_hand(10 * q, k, v, lambda s, head: torch.softmax(2 * torch.tanh(s / 2) + mask, -1))
    torch.testing.assert_close(attend_dense(10 * q, k, v, layer(soft_cap=2.0)), expected, rtol=1e-5, atol=1e-5)


def test_sinks_take_weight_and_carry_no_value():
    q, k, v = row(3, 9)
    mask, sinks = causal(3, 9)[0], torch.tensor([-1.0, 0.0, 1.0, 3.0])

    def weights(scores, head):
        exponents = torch.exp(scores + mask)
        return exponents / (exponents.sum(-1, keepdim=True) + torch.exp(sinks[head]))

    found = attend_dense(q, k, v, layer(sinks=sinks))
    torch.testing.assert_close(found, by_hand(q, k, v, weights), rtol=1e-5, atol=1e-5)


@pytest.mark.daily(case=cover_values(CASES))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_conforms(case: AttentionCase):
    class Host:
        torch_device = torch.device("cpu")

    check_attention(DenseAttention(), Host(), case)


def layout(query, context, tables):
    return BatchLayout(np.array(query, np.int32), np.array(context, np.int32), (np.array(tables, np.int32),))


def test_a_paged_cache_gives_what_a_whole_row_gives():
    one, backend, group = layer(window=6), DenseAttention(), KVGroup(0, "window", (0,), 64, 6)
    cache = backend.allocate(CacheSpec((group,), (one,), 16, 4, torch.float32), None)
    rows = [row(11, 11), row(5, 5)]
    tables = [[9, 2, 5], [7, 1, 0]]
    steps = [([6, 0], [6, 0]), ([3, 4], [9, 4]), ([2, 1], [11, 5])]
    found = [[], []]
    for query, context in steps:
        active = [r for r in (0, 1) if query[r]]
        parts = [[x[context[r] - query[r] : context[r]] for x in rows[r]] for r in active]
        q, k, v = (torch.cat(each) for each in zip(*parts, strict=True))
        plan = backend.plan(
            layout([query[r] for r in active], [context[r] for r in active], [tables[r] for r in active]), group
        )
        out = backend.attend(q, k, v, one, cache, plan).split([query[r] for r in active])
        for r, part in zip(active, out, strict=True):
            found[r].append(part)
    for r in (0, 1):
        torch.testing.assert_close(torch.cat(found[r]), attend_dense(*rows[r], one), rtol=1e-6, atol=1e-6)


def test_without_a_cache_rows_do_not_see_each_other():
    one, backend, group = layer(), DenseAttention(), KVGroup(0, "full", (0,), 64)
    rows = [row(4, 4), row(3, 3)]
    q, k, v = (torch.cat(each) for each in zip(*rows, strict=True))
    found = backend.attend(q, k, v, one, None, backend.plan(layout([4, 3], [4, 3], [[0], [0]]), group))
    expected = torch.cat([attend_dense(*each, one) for each in rows])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_freed_blocks_behind_the_window_may_hold_anything():
    q, k, v = row(1, 9)
    expected = attend_dense(q, k, v, layer(window=3))
    k[:6] = v[:6] = torch.nan
    assert torch.equal(attend_dense(q, k, v, layer(window=3)), expected)
