"""Rehearsed steps: rows of many lengths that write to places of their own, however small the cache is."""

from __future__ import annotations

import numpy as np
import pytest

from lsv.kv.spec import KVGroup
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.worker.inputs import dummy_batch
from lsv_runtime.worker.rehearsal import Rehearsal

SIZE, WIDTH = 16, 12
GROUPS = (KVGroup(0, "full", (0,), 64), KVGroup(1, "window", (1,), 64, window=20))


@pytest.mark.parametrize("blocks", [1, 2, 9, 40, 500])
def test_rows_write_where_no_other_row_reads_or_writes(blocks: int) -> None:
    shape = Shape("decode", 20, 1, WIDTH)
    rehearsal = Rehearsal(GROUPS, BatchLimits(20, 128, WIDTH, SIZE, num_blocks=blocks), vocab_size=50, axes=3)
    batch = rehearsal.step(dummy_batch(shape, GROUPS, SIZE, padded=False, axes=3), shape)
    assert (batch.ids.shape, batch.positions.shape, batch.layout.blocks) == ((20,), (3, 20), WIDTH)
    context, last = batch.layout.context, (batch.layout.context - 1) // SIZE
    assert (batch.positions[:, context > 1] == context[context > 1] - 1).all()
    assert max(context) <= WIDTH * SIZE
    written, read = [], []
    for table in map(np.asarray, batch.layout.tables):
        assert table.max(initial=0) <= blocks
        own = table[np.arange(20), last]
        written += [block for block in own if block]
        read += [block for row, count in zip(table, last, strict=True) for block in row[:count]]
    assert len(written) == len(set(written))
    assert not {0, *written} & set(read)
    if blocks == 500:
        assert len(written) == 40
        assert max(context) == 128 + 1, "the prompt fills a step"
        assert len(set(context)) == 128 // SIZE + 1


def test_the_prompt_fills_the_blocks_that_are_read() -> None:
    rehearsal = Rehearsal(GROUPS, BatchLimits(4, 64, WIDTH, SIZE, num_blocks=100), vocab_size=50)
    prompt = rehearsal.prompt()
    assert (len(prompt.ids), list(prompt.layout.context)) == (64, [64])
    assert [np.asarray(table).tolist() for table in prompt.layout.tables] == [[[1, 2, 3, 4]], [[51, 52, 53, 54]]]
    assert prompt.ids.max() < 50


@pytest.mark.parametrize("blocks", [1, 9, 40, 500])
def test_rows_of_many_tokens_fill_a_step(blocks: int) -> None:
    """Each writes to one block of its own; those that fill the step up are on the null page."""
    shape = Shape("tokens", 6, 64, WIDTH, tokens=64)
    rehearsal = Rehearsal(GROUPS, BatchLimits(5, 64, WIDTH, SIZE, num_blocks=blocks), vocab_size=50, axes=3)
    batch = rehearsal.step(dummy_batch(shape, GROUPS, SIZE, padded=False, axes=3), shape)
    layout = batch.layout
    assert (batch.ids.shape, batch.positions.shape, layout.query.sum()) == ((64,), (3, 64), 64)
    assert (layout.query >= 0).all()
    assert (layout.context <= WIDTH * SIZE).all()
    assert batch.positions.max() <= (WIDTH - 1) * SIZE, "a request may end in its last block's first place"
    for table in map(np.asarray, layout.tables):
        assert table.shape == (6, WIDTH)
        written = table[np.arange(6), (layout.context.clip(min=1) - 1) // SIZE]
        own = written[written > 0]
        assert len(set(own)) == len(own)
    if blocks == 500:
        assert layout.query.tolist() == [16, 16, 16, 15, 1, 0]
        assert layout.context[:5].tolist() == [80, 64, 48, 31, 1]
