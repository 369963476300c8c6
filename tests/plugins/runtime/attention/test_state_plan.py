"""Where a step reads and leaves recurrent states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lsv_runtime.attention import BatchLayout
from lsv_runtime.attention.state_plan import plan_states

SIZE = 4


def pieces(rows: Sequence[tuple[int, int, Sequence[int]]], drafts: dict[int, Sequence[int]]) -> dict[int, list[object]]:
    """By token of the step that a piece ends with, the pages that it goes on from and leaves its state in. Rows are
    the place of their first token, how many they are, and their block table.
    """
    query = np.array([count for _, count, _ in rows], np.int32)
    context = np.array([start + count for start, count, _ in rows], np.int32)
    table = np.array([blocks for _, _, blocks in rows], np.int32)
    plan = plan_states(BatchLayout(query, context, (table,)), table, SIZE, torch.device("cpu"), {}, drafts)
    found: dict[int, list[object]] = {}
    for run in plan.runs:
        fresh = [False] * len(run.sources) if run.fresh is None else run.fresh.tolist()
        for tokens, source, new, target in zip(
            run.tokens.tolist(), run.sources.tolist(), fresh, run.targets.tolist(), strict=True
        ):
            found[tokens[-1]] = [None if new else source, target, len(tokens)]
    return found


def test_a_row_leaves_its_state_at_its_end_and_at_borders_with_a_block():
    assert pieces([(0, 10, [3, 0, 5])], {}) == {3: [None, 3, 4], 9: [3, 5, 6]}


def test_a_row_with_drafts_leaves_a_state_behind_each_of_its_tokens():
    assert pieces([(5, 3, [1, 2, 0])], {0: (7, 8)}) == {0: [2, 7, 1], 1: [7, 8, 1], 2: [8, 2, 1]}


def test_a_state_behind_a_draft_at_a_border_goes_to_the_table():
    assert pieces([(2, 4, [1, 2])], {0: (7, 8, 9)}) == {
        0: [1, 7, 1], 1: [7, 1, 1], 2: [1, 9, 1], 3: [9, 2, 1]
    }  # fmt: skip


@pytest.mark.parametrize("most", [1, 3])
def test_rows_of_prompts_and_of_drafts_share_a_step(most: int):
    rows = [(6, 1 + most, [1, 2, 3]), (0, 6, [4, 5, 0]), (3, 1, [6, 0, 0])]
    found = pieces(rows, {0: tuple(range(10, 10 + most))})
    assert found[most] == [10 + most - 1, 2 if most == 1 else 3, 1]
    assert found[most + 6] == [4, 5, 2]
    assert found[most + 7] == [6, 6, 1]
