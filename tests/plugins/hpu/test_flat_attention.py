"""The algebra of flat paged attention, piece by piece, and that the suite for padded batches finds faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lsv_hpu.attention.backend import FlatAttention, FlatPlan
from lsv_hpu.attention.flat import attend_blocks, block2batch
from lsv_hpu.attention.prompt import Sight, attend_fused, attend_plainly
from lsv_hpu.emulation.ops import fake_ops
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.dense import attend_dense
from lsv_runtime.emulation.vendors.onednn import check_rows_apart
from lsv_testing.attention import AttentionCase, check_attention
from lsv_testing.layouts import Padded

pytestmark = pytest.mark.onednn

BLOCK = 4


def one_hot(rows: torch.Tensor, count: int) -> torch.Tensor:
    return (rows[:, None] == torch.arange(count)).float()


def test_blocks_of_a_row_are_added_up() -> None:
    rows = torch.tensor([1, 0, 1, 3])
    parts = torch.tensor([[[1.0, 2.0]], [[4.0, 8.0]], [[16.0, 32.0]], [[64.0, 128.0]]])
    found = block2batch(parts, one_hot(rows, 3))
    assert found.tolist() == [[[4.0, 8.0]], [[17.0, 34.0]], [[0.0, 0.0]]], "row 3 of 3 is none: block 3 fills up"


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_block_that_is_not_finite_spoils_its_own_row(number: float) -> None:
    parts = torch.tensor([[1.0, 2.0], [number, 3.0], [4.0, 5.0]])
    found = block2batch(parts, one_hot(torch.tensor([0, 1, 0]), 2))
    assert found[0].tolist() == [5.0, 7.0]
    assert found[1].isnan().all()


@pytest.mark.parametrize("window", [None, 6])
def test_blocks_in_any_order_are_what_dense_attention_gives(window: int | None) -> None:
    layer = AttentionLayer(0, 6, 2, 8, 0.3, window=window, soft_cap=3.0, sinks=torch.linspace(-1, 1, 6))
    lengths, q = (11, 1, 4), torch.randn(3, 6, 8)
    keys = [torch.randn(length, 2, 8) for length in lengths]
    pieces = []
    for row, k in enumerate(keys):
        for start in range(0, len(k), BLOCK):
            block = torch.full((BLOCK, 2, 8), torch.nan)
            block[: len(k[start : start + BLOCK])] = k[start : start + BLOCK]
            pieces.append((row, len(k) - 1 - start, block))
    pieces = [*pieces[::-1], (3, -1, torch.full((BLOCK, 2, 8), torch.nan))]
    rows, distance = (torch.tensor([piece[i] for piece in pieces]) for i in (0, 1))
    blocks = torch.stack([piece[2] for piece in pieces])
    found = attend_blocks(q, blocks, blocks * 2, rows, distance, one_hot(rows, 3), layer)
    wanted = torch.cat([attend_dense(q[row, None], k, k * 2, layer) for row, k in enumerate(keys)])
    torch.testing.assert_close(found, wanted)


def test_a_row_that_sees_nothing_is_zero() -> None:
    layer, rows = AttentionLayer(0, 2, 2, 8, 1.0), torch.tensor([0])
    block = torch.randn(1, BLOCK, 2, 8)
    found = attend_blocks(torch.randn(2, 2, 8), block, block, rows, torch.tensor([3]), one_hot(rows, 2), layer)
    assert found[0].abs().sum() > 0
    assert found[1].abs().sum() == 0


def test_single_tokens_of_odd_heads_are_apart() -> None:
    """Each row has a block of five tokens."""
    layer, rows, count = AttentionLayer(0, 4, 2, 33, 0.2), torch.arange(6), 6
    k, v = (torch.randn(count, 5, 2, 33, dtype=torch.bfloat16) for _ in "kv")

    def attend(q: torch.Tensor) -> torch.Tensor:
        return attend_blocks(q, k, v, rows, torch.full((count,), 4), one_hot(rows, count), layer)

    check_rows_apart(attend, torch.randn(count, 4, 33, dtype=torch.bfloat16))


def test_prompts_of_odd_heads_are_apart() -> None:
    layer, sight = (
        AttentionLayer(0, 4, 2, 33, 0.2),
        Sight(torch.zeros(6, dtype=torch.int64), torch.arange(7).expand(6, 7)),
    )
    k, v = (torch.randn(6, 7, 2, 33, dtype=torch.bfloat16) for _ in "kv")
    check_rows_apart(lambda q: attend_plainly(q, k, v, sight, layer), torch.randn(6, 3, 4, 33, dtype=torch.bfloat16))


@pytest.mark.parametrize("causal", [True, False])
def test_prompts_in_pieces_are_what_they_are_as_a_whole(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = AttentionLayer(0, 4, 2, 8, 0.3, causal=causal, window=9)
    q, k, v = (torch.randn(2, 20, heads, 8) for heads in (4, 2, 2))
    sight = Sight(torch.tensor([0, 5]), torch.arange(20).expand(2, 20))
    whole = attend_plainly(q, k, v, sight, layer)
    monkeypatch.setattr("lsv_hpu.attention.prompt._QUERIES", 7)
    torch.testing.assert_close(attend_plainly(q, k, v, sight, layer), whole)
    torch.testing.assert_close(attend_fused(q, k, v, sight, layer, fake_ops()), whole)


class ReadsPadding(FlatAttention):
    """Takes places that hold no token for tokens."""

    def plan(self, *args: object, **kwargs: object) -> FlatPlan:
        plan = super().plan(*args, **kwargs)  # type: ignore[arg-type]
        return replace(plan, alive=torch.ones_like(plan.alive))


class KeepsOldPlan(FlatAttention):
    """Does not refill a plan."""

    def plan(self, batch: object, group: object, into: FlatPlan | None = None) -> FlatPlan:
        return into if into is not None else super().plan(batch, group)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [ReadsPadding, KeepsOldPlan])
def test_the_suite_finds_faults_with_padding(fault: type[FlatAttention]) -> None:
    class Host:
        torch_device = torch.device("cpu")

    case = AttentionCase("float32", 32, 1, 16, "plain")
    lengths, layout = (1, 5, 17), Padded(torch.nan, lambda query, context: 9)
    check_attention(FlatAttention(fake_ops()), Host(), case, layout=layout, lengths=lengths)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="off by"):
        check_attention(fault(fake_ops()), Host(), case, layout=layout, lengths=lengths)  # type: ignore[arg-type]
