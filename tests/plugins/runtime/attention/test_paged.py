"""The base of attention backends: one with ``attend`` and ``write`` alone conforms; what plans and caches hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup, KVSpec
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.cache import PagedCache
from lsv_runtime.attention.dense import attend_dense
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import PagedPlan, make_plan, pack, row_starts, split
from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, check_attention

LAYER = AttentionLayer(0, 4, 2, 64, 0.125)
GROUP = KVGroup(0, "full", (0,), 1024)


class SmallBackend(PagedBackend):
    """As short as a backend can be."""

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: PagedCache | None,
        plan: PagedPlan,
    ) -> torch.Tensor:
        if cache is not None and k is not None and v is not None:
            self.write(k, v, layer, cache, plan)
        rows = []
        for row, queries in enumerate(q.split(plan.starts.diff().tolist())):
            if cache is None:
                assert k is not None
                assert v is not None
                seen = slice(int(plan.starts[row]), int(plan.starts[row + 1]))
                keys, values = k[seen], v[seen]
            else:
                length = int(plan.context[row])
                table = plan.tables[row, : -(-length // self.block_size)]
                keys, values = (pages[table].flatten(0, 1)[:length] for pages in cache.of(layer))
            rows.append(attend_dense(queries, keys, values, layer))
        return torch.cat(rows)

    def write(
        self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: PagedPlan
    ) -> None:
        for pages, new in zip(cache.of(layer), (k, v), strict=True):
            pages[plan.slots // self.block_size, plan.slots % self.block_size] = new


@pytest.fixture
def device() -> Device:
    class Host:
        torch_device, pinned = torch.device("cpu"), False

    return Host()  # type: ignore[return-value]


@pytest.mark.parametrize("feature", ["plain", "window", "window+sinks", "alibi"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_backend_is_attend_and_write(feature: str, block_size: int, device: Device) -> None:
    check_attention(SmallBackend(), device, AttentionCase("float32", 64, 2, block_size, feature))


def test_a_backend_that_writes_elsewhere_is_caught(device: Device) -> None:
    class Shifted(SmallBackend):
        def write(self, k: Any, v: Any, layer: AttentionLayer, cache: PagedCache, plan: PagedPlan) -> None:
            super().write(k.roll(1, 0), v, layer, cache, plan)

    with pytest.raises(AssertionError, match="step 1"):
        check_attention(Shifted(), device, AttentionCase("float32", 64, 2, 16, "plain"))


def test_layers_that_can_not_be_served_are_refused() -> None:
    backend = SmallBackend()
    assert backend.supports(LAYER) is None
    assert "3 query heads are not a multiple of 2 KV heads" in (backend.supports(replace(LAYER, heads=3)) or "")
    assert "chooses some" in (backend.supports(replace(LAYER, gathered=True)) or "")
    assert backend.page_bytes(KVSpec(0, "full", 1024), 16) == 1024 * 16


def layout(query: list[int], context: list[int], *tables: list[list[int]], **changes: int) -> BatchLayout:
    numbers = (np.array(part, np.int32) for part in (query, context))
    return BatchLayout(*numbers, tuple(np.array(table, np.int32) for table in tables), **changes)


def test_a_plan_says_where_every_token_goes() -> None:
    batch = layout([3, 1], [5, 9], [[7, 2, 0], [4, 3, 1]])
    plan = make_plan(batch, batch.tables[0], 4, None)
    assert plan.starts.tolist() == [0, 3, 4]
    assert plan.context.tolist() == [5, 9]
    assert plan.tables.tolist() == [[7, 2, 0], [4, 3, 1]]
    assert plan.slots.tolist() == [7 * 4 + 2, 7 * 4 + 3, 2 * 4, 1 * 4]
    assert (plan.rows, plan.decoding) == (2, False)
    assert (plan.host_starts.tolist(), plan.host_context.tolist()) == ([0, 3, 4], [5, 9])
    assert {part.dtype for part in (plan.starts, plan.context, plan.tables, plan.slots)} == {torch.int32}


def test_tokens_before_an_item_begins_go_where_it_begins() -> None:
    batch = layout([4], [2], [[5]])
    assert make_plan(batch, batch.tables[0], 4, None).slots.tolist() == [20, 20, 20, 21]


def test_a_plan_is_refilled_in_place_by_a_batch_of_its_shape() -> None:
    first = layout([1, 1], [2, 1], [[3], [0]], blocks=4)
    second = layout([1, 1], [5, 9], [[7, 2, 0], [4, 3, 1]], blocks=4)
    plan = make_plan(first, first.tables[0], 4, None)
    tensors = (plan.starts, plan.context, plan.tables, plan.slots)
    again = make_plan(second, second.tables[0], 4, None, into=plan)
    assert again is plan
    assert (plan.starts, plan.context, plan.tables, plan.slots) == tensors
    assert plan.tables.tolist() == [[7, 2, 0, 0], [4, 3, 1, 0]]
    assert plan.slots.tolist() == [2 * 4, 1 * 4]
    assert plan.host_context.tolist() == [5, 9]
    wider = replace(second, blocks=5)
    with pytest.raises(AssertionError, match="another shape"):
        make_plan(wider, wider.tables[0], 4, None, into=plan)


def test_what_a_backend_plans_goes_along_in_one_copy() -> None:
    first, second = (layout([1, 1], [2, at], [[3], [1]]) for at in (1, 4))
    plan = make_plan(
        first, first.tables[0], 4, None, more=[np.array([[1, 2], [3, 4]], np.int32), np.array([5], np.int32)]
    )
    assert [part.tolist() for part in plan.more] == [[[1, 2], [3, 4]], [5]]
    assert {part.untyped_storage().data_ptr() for part in plan.more} == {plan.memory.data_ptr()}
    more = [np.array([[6, 7], [8, 9]], np.int32), np.array([0], np.int32)]
    assert make_plan(second, second.tables[0], 4, None, plan, more) is plan
    assert [part.tolist() for part in plan.more] == [[[6, 7], [8, 9]], [0]]
    assert plan.host_context.tolist() == [2, 4]
    with pytest.raises(AssertionError, match="another shape"):
        make_plan(second, second.tables[0], 4, None, plan, more[:1])


def test_rows_of_a_padded_batch_begin_every_span() -> None:
    assert row_starts(layout([3, 1, 2], [3, 1, 2])).tolist() == [0, 3, 4, 6]
    assert row_starts(layout([3, 1, 2], [3, 1, 2], span=4)).tolist() == [0, 4, 8, 12]


SMALL = replace(LAYER, index=2, kv_heads=1, group=1)
GROUPS = (KVGroup(0, "full", (0, 1), 1024), KVGroup(1, "window", (2,), 512, 32))
LAYERS = (LAYER, replace(LAYER, index=1, place=1), SMALL)


@pytest.mark.parametrize(("dtype", "one"), [(torch.float32, 1024), (torch.float8_e5m2, 256), (torch.int8, 272)])
def test_blocks_of_a_group_lie_one_after_another_in_a_page(dtype: torch.dtype, one: int) -> None:
    spec = CacheSpec(GROUPS, LAYERS[::-1], 4, 16, dtype)
    assert list(spec.placed()) == [(0, 0), (0, 1), (1, 0)]
    assert spec.offsets() == ({(0, 0): 0, (0, 1): 16 * one, (1, 0): 0}, 32 * one)


def test_layers_that_read_take_no_room() -> None:
    reader = replace(LAYERS[1], index=7, heads=4, reads=1)
    assert CacheSpec(GROUPS, (*LAYERS, reader), 4, 16, torch.float32).placed() == dict(
        zip([(0, 0), (0, 1), (1, 0)], LAYERS, strict=True)
    )
    assert (reader.keeper, LAYERS[1].keeper) == (1, 1)


def test_pages_are_cut_wherever_no_block_is() -> None:
    """One piece a layer where all are of one size; layers of other sizes share the pieces between common borders."""
    one = 16 * 1024
    assert CacheSpec(GROUPS[:1], LAYERS[:2], 4, 16, torch.float32).pieces() == (
        {(0, 0): (0, 0), (0, 1): (1, 0)},
        [one, one],
    )
    small = tuple(replace(SMALL, index=2 + place, place=place) for place in range(3))
    groups = (GROUPS[0], KVGroup(1, "window", (2, 3, 4), 512, 32))
    assert CacheSpec(groups, (*LAYERS[:2], *small), 4, 16, torch.float32).pieces() == (
        {(0, 0): (0, 0), (0, 1): (1, 0), (1, 0): (0, 0), (1, 1): (0, one // 2), (1, 2): (1, 0)},
        [one, one],
    )
    assert CacheSpec((), (), 4, 16, torch.float32).pieces() == ({}, [])


@pytest.mark.parametrize("seed", range(20))
def test_pieces_hold_every_block_whole_and_take_no_more_than_pages(seed: int) -> None:
    draw = np.random.default_rng(seed)
    layers: list[AttentionLayer] = []
    groups = []
    for group in range(draw.integers(1, 4)):
        made = [
            replace(LAYER, index=len(layers) + place, kv_heads=int(draw.choice((1, 2, 4))), group=group, place=place)
            for place in range(draw.integers(1, 6))
        ]
        groups.append(KVGroup(group, "full", tuple(layer.index for layer in made), 1024))
        layers += made
    spec = CacheSpec(groups, layers, 4, 16, torch.bfloat16)
    found, sizes = spec.pieces()
    assert sum(sizes) == spec.offsets()[1]
    for place, layer in spec.placed().items():
        number, begin = found[place]
        assert begin + spec.block_bytes(layer) <= sizes[number]
        assert sum(sizes[:number]) + begin == spec.offsets()[0][place]


def test_a_cache_of_equal_layers_is_two_tensors_a_layer(device: Device) -> None:
    """No tensor is larger than one layer's keys: some devices give no more than 4 GiB at a time."""
    window = tuple(replace(SMALL, index=2 + place, kv_heads=2, place=place) for place in range(2))
    groups = (GROUPS[0], KVGroup(1, "window", (2, 3), 1024, 32))
    spec = CacheSpec(groups, (*LAYERS[:2], *window), 5, 16, torch.float32)
    cache = SmallBackend().allocate(spec, device)
    storages = [part.untyped_storage() for layer in spec.layers for part in cache.of(layer)]
    assert {storage.nbytes() for storage in storages} == {5 * spec.block_bytes(LAYER) // 2}
    assert len({storage.data_ptr() for storage in storages}) == 4, "the groups' layers share their pages"


def test_integers_have_no_room_in_a_cache_without_scales(device: Device) -> None:
    with pytest.raises(AssertionError, match="scales of integers"):
        SmallBackend().allocate(CacheSpec(GROUPS, LAYERS, 4, 16, torch.int8), device)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_packed_parts_begin_at_multiples_of_16_bytes(dtype: type) -> None:
    """Whatever the number of rows: Triton compiles a kernel apart for memory that does not."""
    for rows in range(1, 9):
        parts = (np.arange(rows + 1), np.arange(3 * rows).reshape(3, rows), np.arange(rows), np.arange(0))
        packed = pack(parts, dtype)
        assert packed.dtype == dtype
        memory = torch.from_numpy(packed)
        for part, view in zip(parts, split(memory, parts), strict=True):
            assert view.numpy().tolist() == part.tolist()
            assert (view.data_ptr() - memory.data_ptr()) % 16 == 0 or not part.size


@pytest.mark.parametrize("rows", range(1, 6))
def test_a_plan_knows_its_numbers_on_the_host(rows: int) -> None:
    query = np.arange(1, rows + 1, dtype=np.int32)
    plan = make_plan(BatchLayout(query, query + 2, ()), np.zeros((rows, 0), np.int32), 16, None)
    assert plan.host_starts.tolist() == plan.starts.tolist() == [0, *query.cumsum()]
    assert plan.host_context.tolist() == plan.context.tolist() == (query + 2).tolist()
