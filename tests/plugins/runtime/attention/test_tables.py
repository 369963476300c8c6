"""Block tables that stay on a device: always what the host holds, and only changes are sent."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lsv_runtime.attention import BatchLayout
from lsv_runtime.attention.plan import make_plan
from lsv_runtime.attention.tables import BlockTables, TableRows, pad_rows
from lsv_runtime.devices.device import Device


@pytest.fixture
def device() -> Device:
    class Host:
        torch_device, pinned = torch.device("cpu"), False

    return Host()  # type: ignore[return-value]


def filled(slots: int = 4, blocks: int = 6) -> BlockTables:
    tables = BlockTables(slots, blocks)
    for slot in range(slots):
        tables.extend(slot, range(10 * slot + 1, 10 * slot + 2 + slot))
    return tables


def layout(tables: BlockTables, slots: list[int], context: list[int], blocks: int = 0) -> BatchLayout:
    rows = tables.rows(np.array(slots), -(-max(context) // 4))
    return BatchLayout(np.ones(len(slots), np.int32), np.array(context, np.int32), (rows,), blocks=blocks)


def arrays(batch: BatchLayout) -> BatchLayout:
    tables = tuple(np.asarray(table) for table in batch.tables)
    return BatchLayout(batch.query, batch.context, tables, blocks=batch.blocks)


def test_rows_are_picked_and_padded() -> None:
    rows = filled().rows(np.array([2, 0]), 2)
    padded = pad_rows(rows, 1)
    assert np.asarray(rows).tolist() == [[21, 22], [1, 0]]
    assert np.asarray(padded).tolist() == [[21, 22], [1, 0], [0, 0]]
    assert isinstance(padded, TableRows)
    assert padded.shape == (3, 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_tables_on_a_device_are_those_of_the_host(seed: int, device: Device) -> None:
    rng, tables = random.Random(seed), BlockTables(3, 4)
    for _ in range(200):
        slot = rng.randrange(rng.choice([3, 6]))
        if rng.random() < 0.3 or slot >= len(tables._used):
            tables.clear(slot)
        else:
            tables.extend(slot, [rng.randint(1, 99) for _ in range(rng.randint(0, 3))])
        if rng.random() < 0.5:
            assert np.array_equal(tables.on(device).numpy(), tables._table)


def test_only_changes_are_sent(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, sent = filled(64, 1000), []
    take = BlockTables._take_changes
    monkeypatch.setattr(BlockTables, "_take_changes", lambda self: sent.append(take(self)) or sent[-1])
    held = tables.on(device)
    sent.clear()
    for slot in (3, 9):
        tables.extend(slot, [7])
    assert tables.on(device) is held
    assert [len(places) for places, _ in sent] == [2]
    assert tables.on(device) is held
    assert len(sent) == 1


@pytest.mark.parametrize("blocks", [0, 9])
def test_a_plan_of_tables_that_stay_is_that_of_arrays(blocks: int, device: Device) -> None:
    tables = filled()
    batch = layout(tables, [3, 1, 2], [14, 6, 9], blocks)
    plan, expected = (
        make_plan(batch, batch.tables[0], 4, device),
        make_plan(arrays(batch), arrays(batch).tables[0], 4, None),
    )
    for part in ("starts", "context", "slots", "tables"):
        assert getattr(plan, part).tolist() == getattr(expected, part).tolist()
    assert plan.host.tolist() == expected.host.tolist()


def test_a_plan_is_refilled_in_place_with_nothing_left_of_before(device: Device) -> None:
    tables = filled()
    first, second = layout(tables, [3, 2], [14, 9], 9), layout(tables, [0, 1], [2, 6], 9)
    plan = make_plan(first, first.tables[0], 4, device)
    tensors = [plan.starts, plan.context, plan.slots, plan.tables]
    places = [tensor.data_ptr() for tensor in tensors]
    assert make_plan(second, second.tables[0], 4, device, plan) is plan
    assert [tensor.data_ptr() for tensor in (plan.starts, plan.context, plan.slots, plan.tables)] == places
    assert plan.tables.tolist() == [[1, *[0] * 8], [11, 12, *[0] * 7]]


def test_what_a_step_sends_does_not_grow_with_the_longest_request(device: Device) -> None:
    """The block tables of a step padded to 8192 blocks stay where they are."""
    tables = filled(64, 8192)
    batch = layout(tables, list(range(64)), [4] * 64, 8192)
    plan = make_plan(batch, batch.tables[0], 4, device)
    assert plan.tables.shape == (64, 8192)
    assert plan.memory.numel() == plan.host.size < 4 * 64 + 8
