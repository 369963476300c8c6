"""Layers that attend in chunks: each chunk of a row is a row of its own, with the blocks that hold it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import BatchLayout


def cut_chunks(batch: BatchLayout, group: KVGroup, block_size: int) -> BatchLayout:
    """The batch that a group's plan is made of: for one whose layers attend in chunks, with a row for every chunk that
    a row has tokens in, whose context begins with it. Tokens stay where they are.
    """
    chunk = group.chunk
    if chunk is None or not batch.tables:
        return batch
    context = batch.context.astype(np.int64)
    start = context - batch.query
    count = np.maximum(1, -(-context // chunk) - start // chunk)  # a padding row may have no tokens
    row = np.arange(len(count)).repeat(count)
    number = start[row] // chunk + np.arange(len(row)) - (count.cumsum() - count)[row]
    begin, end = np.maximum(start[row], number * chunk), np.minimum(context[row], (number + 1) * chunk)
    table = np.asarray(batch.tables[group.index])
    columns = np.arange(table.shape[1]) + (number * (chunk // block_size))[:, None]
    live = (columns < table.shape[1]) & (np.arange(table.shape[1]) < chunk // block_size)
    cut = np.where(live, table[row[:, None], np.where(live, columns, 0)], 0).astype(np.int32)
    tables = tuple(cut if index == group.index else other for index, other in enumerate(batch.tables))
    lengths = ((end - begin).astype(np.int32), (end - number * chunk).astype(np.int32))
    return replace(batch, query=lengths[0], context=lengths[1], tables=tables)
