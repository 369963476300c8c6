"""A plan's rows as the arrays a step computes: ids, positions, block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lsv.kv.spec import KVGroup
from lsv.request.media import Mutual, spans_of
from lsv.scheduler.plan import Rows, StepPlan
from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.attention.spans import ItemLayout, SeenRow, find_items
from lsv_runtime.attention.tables import BlockTables, pad_rows
from lsv_runtime.devices.shapes import Shape
from lsv_runtime.worker.slots import Slot

Int64s = npt.NDArray[np.int64]


def _nowhere() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """The step on the host: T tokens of ``rows`` requests, in row order; further rows are padding."""

    ids: Int64s
    """int64 [T]."""
    positions: Int64s
    """int64 [axes, T]."""
    layout: BatchLayout
    last: Int64s
    """int64 [rows]: where each row's last token is."""
    unknown: Int64s = field(default_factory=_nowhere)
    """int64: the tokens that a step in flight is still sampling; their ids are 0 here."""
    awaited: Int64s = field(default_factory=_nowhere)
    """int64: the slots these are sampled for."""
    sampled: Int64s = field(default_factory=_nowhere)
    """int64: the slots that this step samples tokens for, where the next one will take them from the device."""
    cross: BatchLayout | None = None
    """The layout for groups of kind "cross", if the model has any."""
    types: Int64s | None = None
    """int64 [T]: 1 for the tokens of a row's second text; None where every row has one text."""
    adapters: Int64s | None = None
    """int64 [T]: one more than the slot of each token's adapter, 0 for none; None where no token has any."""
    items: ItemLayout | None = None
    """The tokens that see one another."""
    checked: bool = False
    """Whether the step finds out which tokens' states are finite."""

    @property
    def rows(self) -> int:
        return len(self.last)

    def layout_of(self, group: KVGroup) -> BatchLayout:
        """The layout that a group's attention is planned for."""
        return self.layout if self.cross is None or group.kind != "cross" else self.cross


def build_batch(
    plan: StepPlan,
    slots: Sequence[Slot],
    tables: Sequence[BlockTables],
    block_size: int,
    *,
    axes: int = 1,
    pairs: bool = False,
    ahead: bool = False,
    adapted: bool = False,
    mutual: Mutual = "",
) -> Batch:
    """Lay out the tokens of the plan's rows, which are in these ``slots``, with positions along ``axes``; for a model
    that reads ``pairs`` of texts with what says where the second one begins.

    ``ahead`` says that steps are in flight whose tokens the slots may lack, ``mutual`` whose tokens see one another.
    """
    rows = plan.rows
    start = np.array(rows.start, np.int64)
    count = np.array(rows.count, np.int64)
    context = start + count
    single = max(rows.count) == 1
    if single and not ahead:
        ids, last = _singles(rows, slots), np.arange(len(slots))
    else:
        ids, last = _spans(rows, slots, count, context, lacking=int(ahead))
        if rows.drafts:
            _place_drafts(ids, last + 1, rows, slots)
    if axes > 1:
        spans = zip(slots, rows.start, context.tolist(), strict=True)
        placed = [slot.positions(first, stop, axes) for slot, first, stop in spans]
        positions = np.concatenate(placed, axis=1).astype(np.int64)
    else:
        positions = (start if single else np.arange(len(ids)) + np.repeat(start - (last + 1 - count), count))[None]
    width = -(-int(context.max()) // block_size)
    numbers = np.array(rows.slot, np.int64)
    late = _late(slots, context - np.array(rows.drafts or 0, np.int64)) if ahead else _nowhere()
    layout = BatchLayout(
        query=count.astype(np.int32),
        context=context.astype(np.int32),
        tables=tuple(table.rows(numbers, width) for table in tables),
        draft_pages=_draft_pages(plan) if plan.draft_states else {},
    )
    crosses = any(table.full_width for table in tables)
    return Batch(
        ids=ids,
        positions=positions,
        layout=layout,
        last=last,
        unknown=last[late],
        awaited=numbers[late],
        cross=replace(layout, context=_items(slots)) if crosses else None,
        types=_types(slots, start, count) if pairs else None,
        adapters=_adapters(slots, count) if adapted else None,
        items=_find_items(rows, slots, last, tables, width, mutual) if mutual and not single else None,
    )


def _find_items(
    rows: Rows, slots: Sequence[Slot], last: Int64s, tables: Sequence[BlockTables], width: int, mutual: Mutual
) -> ItemLayout | None:
    numbers, ends = np.array(rows.slot, np.int64), zip(slots, rows.start, rows.count, last.tolist(), strict=True)
    seen = [
        SeenRow(
            end + 1 - size,
            first,
            first + size,
            ((0, slot.prompt),) if mutual == "prompts" else spans_of(slot.begin.media),
        )
        for slot, first, size, end in ends
    ]
    return find_items(seen, lambda picked: tuple(table.rows(numbers[picked], width) for table in tables))


def _draft_pages(plan: StepPlan) -> dict[int, dict[int, tuple[int, ...]]]:
    """As ``BatchLayout.draft_pages``."""
    rows = {slot: row for row, slot in enumerate(plan.rows.slot)}
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    for one in plan.draft_states:
        for place in range(one.groups):
            found.setdefault(one.group + place, {})[rows[one.slot]] = one.blocks[place :: one.groups]
    return found


def _items(slots: Sequence[Slot]) -> Int32s:
    """Embeddings of each row's media item; a row that may do without one reads a number of the null page."""
    return np.array([max(1, slot.cross_len) for slot in slots], np.int32)


def _adapters(slots: Sequence[Slot], count: Int64s) -> Int64s | None:
    """One more than the slot of the adapter of each token's row."""
    numbers = np.array([0 if slot.begin.adapter is None else slot.begin.adapter + 1 for slot in slots], np.int64)
    return np.repeat(numbers, count) if numbers.any() else None


def _types(slots: Sequence[Slot], start: Int64s, count: Int64s) -> Int64s | None:
    """1 for every token from the beginning of its row's second text on."""
    if not any(slot.begin.second for slot in slots):
        return None
    spans = zip(slots, start.tolist(), count.tolist(), strict=True)
    second = [np.arange(first, first + size) >= (slot.begin.second or first + size) for slot, first, size in spans]
    return np.concatenate(second).astype(np.int64)


def _late(slots: Sequence[Slot], context: Int64s) -> Int64s:
    """The rows whose slots lack their last token; ``context`` counts no drafts."""
    late: Int64s = np.flatnonzero(np.array([len(slot.tokens) for slot in slots], np.int64) < context)
    return late


def _singles(rows: Rows, slots: Sequence[Slot]) -> Int64s:
    """Ids when each row has one token, as in every step without prompts."""
    ids = [slot.tokens.at(place) for slot, place in zip(slots, rows.start, strict=True)]
    return np.array(ids, np.int64)


def _spans(rows: Rows, slots: Sequence[Slot], count: Int64s, context: Int64s, *, lacking: int) -> tuple[Int64s, Int64s]:
    """Ids and ``last`` of any rows; a slot may lack up to ``lacking`` of the row's last tokens. Drafts are left out."""
    end = np.cumsum(count)
    ids = np.zeros(end[-1], np.int64)
    begin = (end - count).tolist()
    drafts = rows.drafts or (0,) * len(rows)
    for slot, first, last, place, more in zip(slots, rows.start, context.tolist(), begin, drafts, strict=True):
        known = slot.ids[first:last]
        assert len(known) >= last - first - lacking - more, "a row computes tokens that its slot does not hold"
        ids[place : place + len(known)] = known
    return ids, end - 1


def _place_drafts(ids: Int64s, end: Int64s, rows: Rows, slots: Sequence[Slot]) -> None:
    """Write the drafts of rows that end at ``end`` into ``ids``."""
    for slot, count, stop in zip(slots, rows.drafts, end.tolist(), strict=True):
        if count:
            ids[stop - count : stop] = slot.drafts[:count]


def pad_batch(batch: Batch, shape: Shape, *, padded: bool, cross_blocks: int = 0) -> Batch:
    """The same step with ``shape.rows`` rows; in the ``padded`` layout each has ``shape.query`` places, in the flat one
    all have ``shape.tokens`` together, if the shape says how many.

    ``cross_blocks`` is what the block lists of groups of kind "cross" are padded to.
    """
    assert batch.items is None, "attention of items is planned for steps as they are"
    layout = batch.layout
    span = shape.query if padded else 0
    moved = _padded_places(layout, span) if padded else np.arange(len(batch.ids))
    more = _share(shape.tokens - len(batch.ids) if shape.tokens else None, shape.rows - batch.rows)
    tokens = shape.rows * span if padded else len(batch.ids) + int(more.sum())
    return Batch(
        ids=_place(batch.ids, moved, tokens),
        positions=_place(batch.positions, moved, tokens),
        layout=_pad_layout(layout, more, more, span, shape.blocks),
        last=moved[batch.last],
        unknown=moved[batch.unknown],
        awaited=batch.awaited,
        sampled=batch.sampled,
        cross=None if batch.cross is None else _pad_layout(batch.cross, more, more.clip(max=1), span, cross_blocks),
        types=None if batch.types is None else _place(batch.types, moved, tokens),
        adapters=None if batch.adapters is None else _place(batch.adapters, moved, tokens),
        checked=batch.checked,
    )


def _share(tokens: int | None, rows: int) -> Int32s:
    """How many of ``tokens`` each of so many padding rows has, the first ones no fewer than the others; None is one
    each.
    """
    if tokens is None:
        return np.ones(rows, np.int32)
    assert rows or not tokens, "tokens are to be padded, and there is no row for them"
    each, left = divmod(tokens, rows) if rows else (0, 0)
    return np.full(rows, each, np.int32) + (np.arange(rows) < left)


def _pad_layout(layout: BatchLayout, more: Int32s, context: Int32s, span: int, blocks: int) -> BatchLayout:
    """With rows of ``more`` tokens each, and so many in all."""
    return BatchLayout(
        query=np.concatenate((layout.query, more)),
        context=np.concatenate((layout.context, context)),
        tables=tuple(pad_rows(table, len(more)) for table in layout.tables),
        span=span,
        blocks=blocks,
        draft_pages=layout.draft_pages,
    )


def _padded_places(layout: BatchLayout, span: int) -> Int64s:
    """Where each token of a flat step goes when every row has ``span`` places."""
    query = layout.query.astype(np.int64)
    behind = np.arange(len(query)) * span - (np.cumsum(query) - query)
    places: Int64s = np.arange(query.sum()) + np.repeat(behind, query)
    return places


def _place(values: Int64s, places: Int64s, size: int) -> Int64s:
    placed = np.zeros((*values.shape[:-1], size), np.int64)
    placed[..., places] = values
    return placed


def dummy_batch(
    shape: Shape, groups: Sequence[KVGroup], block_size: int, *, padded: bool, axes: int = 1, cross_blocks: int = 0
) -> Batch:
    """Rows of token 0 that use the null page alone, in the form of a padded step: for warming up."""
    prompts = shape.query > 1 and not padded and not shape.tokens
    rows, tokens = (shape.rows, shape.rows * shape.query) if prompts else (0, 0)
    lengths = np.full(rows, shape.query, np.int32)
    source = next((group.cross_len for group in groups if group.cross_len is not None), None)
    width = shape.blocks if rows or shape.tokens else 1
    layout = BatchLayout(lengths, lengths, tuple(_no_blocks(group, rows, width, block_size) for group in groups))
    batch = Batch(
        ids=np.zeros(tokens, np.int64),
        positions=np.tile(np.arange(shape.query if rows else 0), (axes, max(1, rows))),
        layout=layout,
        last=np.arange(1, rows + 1) * shape.query - 1,
        cross=None if source is None else replace(layout, context=np.full(rows, source, np.int32)),
    )
    return batch if prompts else pad_batch(batch, shape, padded=padded, cross_blocks=cross_blocks)


def _no_blocks(group: KVGroup, rows: int, width: int, block_size: int) -> Int32s:
    """A table of null pages; for a group of kind "cross" as wide as the longest item."""
    return np.zeros((rows, width if group.cross_len is None else -(-group.cross_len // block_size)), np.int32)
