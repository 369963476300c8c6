"""Layers that attend in chunks: to a backend each chunk of a row is a row."""

import numpy as np
import torch

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.chunks import cut_chunks
from lsv_runtime.attention.dense import DenseAttention, attend_dense

GROUP = KVGroup(1, "window", (1,), 64, 16, chunk=16)
BLOCK = 8


def numbers(*given):
    return np.array(given, np.int32)


def layout(*rows):
    """Of (new tokens, all tokens): row r has the blocks 10 r + 1, 10 r + 2 …; those of group 0 do not matter."""
    query, context = zip(*rows, strict=True)
    table = np.array([[10 * row + column + 1 for column in range(6)] for row in range(len(rows))], np.int32)
    return BatchLayout(numbers(*query), numbers(*context), (np.zeros((len(rows), 6), np.int32), table))


def test_rows_are_cut_where_chunks_begin():
    cut = cut_chunks(layout((1, 17), (40, 41), (1, 16), (3, 30)), GROUP, BLOCK)
    assert cut.query.tolist() == [1, 15, 16, 9, 1, 3]
    assert cut.context.tolist() == [1, 16, 16, 9, 16, 14]
    assert cut.tables[1][:, :2].tolist() == [[3, 4], [11, 12], [13, 14], [15, 16], [21, 22], [33, 34]]
    assert not cut.tables[1][:, 2:].any()
    assert cut.tables[1].shape[1] == 6  # a captured step has tables of one width


def test_rows_of_other_groups_stay():
    batch = layout((1, 17))
    assert cut_chunks(batch, KVGroup(1, "window", (1,), 64, 16), BLOCK) is batch


def test_tokens_see_those_of_their_chunk():
    torch.manual_seed(0)
    layer = AttentionLayer(0, 2, 1, 8, 0.3, chunk=16)
    group = KVGroup(0, "window", (0,), 64, 16, chunk=16)
    backend = DenseAttention()
    cache = backend.allocate(CacheSpec([group], [layer], 8, BLOCK, torch.float32), None)
    q, k, v = torch.randn(41, 2, 8), torch.randn(41, 1, 8), torch.randn(41, 1, 8)
    table, found = numbers(*range(1, 7))[None], []
    for start, stop in ((0, 11), (11, 36), (36, 40), (40, 41)):
        batch = BatchLayout(numbers(stop - start), numbers(stop), (table,))
        plan = backend.plan(cut_chunks(batch, group, BLOCK), group)
        found.append(backend.attend(q[start:stop], k[start:stop], v[start:stop], layer, cache, plan))
    chunks = [slice(first, first + 16) for first in (0, 16, 32)]
    expected = torch.cat([attend_dense(q[chunk], k[chunk], v[chunk], layer) for chunk in chunks])
    torch.testing.assert_close(torch.cat(found), expected)
