"""Attention to tokens that the model chooses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.chosen import attend_chosen, see
from lsv_runtime.attention.dense import attend_dense

pytestmark = pytest.mark.onednn

LAYER = AttentionLayer(0, 4, 2, 8, 0.3)
STARTS, CONTEXT = np.array([0, 3, 4], np.int32), np.array([5, 300], np.int32)
LENGTHS = (STARTS, CONTEXT)


def draw():
    torch.manual_seed(0)
    q = torch.randn(4, 4, 8)
    k, v = (torch.randn(305, 2, 8) for _ in range(2))
    return q, k, v


def rows(k, v):
    return (slice(0, 3), k[:5], v[:5]), (slice(3, 4), k[5:], v[5:])


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])])
def test_choosing_all_is_attending_to_all(sinks):
    q, k, v = draw()
    layer = replace(LAYER, sinks=sinks)
    expected = torch.cat([attend_dense(q[tokens], keys, values, layer) for tokens, keys, values in rows(k, v)])
    found = attend_chosen(q, k, v, see(LENGTHS, q.device), LENGTHS, layer)
    torch.testing.assert_close(found, expected)


def test_what_is_not_chosen_does_not_count():
    q, k, v = draw()
    chosen = see(LENGTHS, q.device)
    chosen[2, 1] = chosen[3, 5:250] = False
    found = attend_chosen(q, k, v, chosen, LENGTHS, LAYER)
    k[1] = v[5:250] = 7.0
    again = attend_chosen(q, k, v, chosen, LENGTHS, LAYER)
    torch.testing.assert_close(again[2:], found[2:])
    assert not torch.allclose(again[:2], found[:2])


def test_tokens_see_those_of_their_row_up_to_themselves():
    seen = see(LENGTHS, torch.device("cpu"))
    assert [row.nonzero().flatten().tolist() for row in seen[:3]] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen[3].nonzero().flatten().tolist() == list(range(5, 305))
