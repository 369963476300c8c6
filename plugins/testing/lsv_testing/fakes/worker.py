"""A worker that computes nothing and checks each plan against what a real worker would need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.kv.blocks import NULL_BLOCK
from lsv.kv.spec import KVGroup
from lsv.request.media import Media
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import AwaitMasks, Kind, Logprobs, Masks, StepPlan, StepResult
from lsv_base.processes.orders import WorkerOrder
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.slot import FakeSlot
from lsv_testing.fakes.tiers import FakeCopies, FakeKeeper

BROKEN = "the picture could not be encoded"
"""Why the rows of a request fail whose media did."""
NOT_FINITE = "its numbers are not finite"
"""Why rows fail that read corrupt contents."""
SPOILT = -1
"""The value of a corrupt position in a block."""

Row = tuple[FakeSlot, int, int, bool]
"""Slot, start, count, wants_logits. The slot knows how many of its tokens are drafts."""

Draft = Callable[[FakeSlot, int], Sequence[int]]
"""What is drafted behind a slot's tokens, at most so many: the scheduler must cope with anything."""


class FakeWorker:
    """An ``Executor`` over ``fake_tokens``. Up to ``limits.depth`` results wait until they are collected.

    Each position of each block keeps the state of the sequence that wrote it. So a plan fails an assertion if it lets a
    request read anything but its own prefix, exceeds ``limits``, skips or repeats tokens, or writes a block that a plan
    in flight uses for another request.
    """

    broken: set[bytes]
    """Hashes of media whose encoding fails the next time; what rows without it compute is never right."""

    def __init__(
        self,
        limits: Limits,
        groups: Sequence[KVGroup],
        num_blocks: int,
        block_size: int,
        draft: Draft = lambda slot, most: (),
        keeper: FakeKeeper | None = None,
    ) -> None:
        self.depth = limits.depth
        self._draft = draft
        self.broken = set()
        self.slots: dict[int, FakeSlot] = {}
        self._limits = limits
        self._groups = tuple(group for group in groups if group.kind != "cross")
        self._cross = tuple(group for group in groups if group.kind == "cross")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._content: list[dict[int, list[int | None]]] = [{} for _ in groups]
        self.copies = FakeCopies(self._content, keeper)
        self._items: dict[int, tuple[int, bytes, int]] = {}  # by block: the group, the item's hash and the place in it
        self._results: deque[StepResult] = deque()
        self._named: deque[dict[int, set[int]]] = deque()
        self._stays = 0
        self._steps_along = False
        self._encoded: dict[bytes, tuple[int, int]] = {}  # by hash: parts that are done, and tokens
        self._faults: set[bytes] = set()  # hashes of media that failed and were not forgotten

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        progress("weights", 1, 1)
        self._steps_along = config.topology.shares_experts
        return Fit(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes=0,
            weight_bytes=0,
            max_model_len=self._limits.max_model_len,
            vocab_size=fake_tokens.VOCABULARY,
            groups=tuple({"index": group.index, "kind": group.kind} for group in (*self._groups, *self._cross)),
        )

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Run a plan in the order in which a worker would; its result waits to be collected."""
        assert plan.masked == (masks is not None), "masks come with plans that are masked"
        assert len(self._results) < self.depth, "too many plans in flight"
        self._change_slots(plan)
        named: dict[int, set[int]] = {}
        lost = self.copies.carry_out(plan, self.slots, partial(self._own, named=named))
        unencoded = self._encode(plan)
        rows = self._rows(plan)
        self._fail_rows(rows)
        self._check_step(plan, rows)
        for row in rows:
            self._check_row(row)
        for row in rows:
            self._write(row, named)
        self._named.append(named)
        self._results.append(
            msgspec.structs.replace(
                _results(plan, rows, {} if masks is None else _allowed(masks()), self._draft),
                unencoded=unencoded,
                lost=lost,
            )
        )

    def spoil(self, number: int) -> None:
        """Corrupt a block. Rows that read it fail, and so do rows that read what those rows write."""
        held = [content for contents in self._content for _, content in sorted(contents.items()) if any(content)]
        if held:
            chosen = held[number % len(held)]
            chosen[:] = [None if one is None else SPOILT for one in chosen]

    def collect(self, timeout: float) -> StepResult:
        self._named.popleft()
        return self._results.popleft()

    def check(self) -> None:
        """It can't hang."""

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        assert not self._results, "an order came while steps are in flight"
        return ()

    def stop(self) -> None:
        self.slots.clear()

    def _change_slots(self, plan: StepPlan) -> None:
        for number in plan.end:
            del self.slots[number]
        for begin in plan.begin:
            assert begin.slot not in self.slots, f"slot {begin.slot} is taken"
            assert 0 <= begin.slot < self._limits.max_num_seqs, f"slot {begin.slot} is out of range"
            self._stays += 1
            self.slots[begin.slot] = FakeSlot(begin, self._stays, len(self._content))
        for grown in plan.blocks:
            for block in grown.blocks:
                assert 0 <= block <= self._num_blocks, f"block {block} does not exist"
            for place in range(grown.groups):
                self.slots[grown.slot].tables[grown.group + place] += grown.blocks[place :: grown.groups]
        for kept in plan.kept_states:
            for place, block in enumerate(kept.blocks):
                self.slots[kept.slot].tables[kept.group + place][kept.column] = block
        for slot in self.slots.values():
            slot.draft_states = [()] * len(self._content)
        for room in plan.draft_states:
            for place in range(room.groups):
                self.slots[room.slot].draft_states[room.group + place] = room.blocks[place :: room.groups]

    def _encode(self, plan: StepPlan) -> dict[bytes, str]:
        for hash in plan.forget:
            if hash in self._faults:
                self._faults.remove(hash)
                self._encoded.pop(hash, None)
            else:
                del self._encoded[hash]
        unencoded: dict[bytes, str] = {}
        for piece in plan.encode:
            slot = self.slots[piece.slot]
            media = slot.begin.media[piece.place]
            if media.hash in self.broken - self._faults:
                self.broken.remove(media.hash)
                self._faults.add(media.hash)
                unencoded[media.hash] = BROKEN
            if media.hash in self._faults:
                slot.fault = BROKEN
                continue
            done, _ = self._encoded.get(media.hash, (0, 0))
            assert done == piece.first <= piece.last <= self._limits.encoder_parts, "parts are skipped or done twice"
            assert media.cross or piece.first < piece.last, "nothing is encoded"
            self._encoded[media.hash] = (piece.last, media.count)
            if media.cross and piece.last == self._limits.encoder_parts:
                self._keep(self.slots[piece.slot], media)
        held = sum(tokens for _, tokens in self._encoded.values())
        assert held <= self._limits.encoder_tokens, "more embeddings than there is room for"
        return unencoded

    def _fail_rows(self, rows: Sequence[Row]) -> None:
        for slot, start, count, _ in rows:
            needed = (media for media in slot.begin.media if media.start < start + count and start < media.stop)
            if any(media.hash in self._faults and not media.cross for media in needed):
                slot.fault = BROKEN

    def _keep(self, slot: FakeSlot, media: Media) -> None:
        """Write the item to the slot's cross blocks."""
        for group in self._cross:
            for index, block in enumerate(slot.tables[group.index]):
                for plan in self._named:
                    assert plan.get(block, {slot.stay}) <= {slot.stay}, f"block {block} of another request is written"
                for content in self._content:
                    content.pop(block, None)
                self._items[block] = (group.index, media.hash, index)

    def _check_item(self, slot: FakeSlot, named: dict[int, set[int]]) -> None:
        """What the row cross-attends to must be the slot's own item."""
        for group in self._cross:
            if slot.cross_item is None:
                assert group.optional, "a request without the item it attends to"
                assert not slot.tables[group.index], "a request without an item has blocks for one"
                continue
            table = slot.tables[group.index]
            assert len(table) == -(-slot.cross_item.count // self._block_size), "a cross group does not fit the item"
            for index, block in enumerate(table):
                found = (group.index, slot.cross_item.hash, index)
                assert self._items.get(block) == found, f"block {block} does not hold the item"
                named.setdefault(block, set()).add(slot.stay)

    def _rows(self, plan: StepPlan) -> list[Row]:
        rows = plan.rows
        drafts, propose = rows.drafts or (0,) * len(rows), rows.propose or (0,) * len(rows)
        assert max(propose, default=0) <= self._limits.drafts, "more is to be drafted than is allowed"
        for number, count in zip(rows.slot, drafts, strict=True):
            slot = self.slots[number]
            assert count <= len(slot.proposed), "a draft that nobody made"
            slot.drafts = slot.proposed[:count]
        return [
            (self.slots[slot], start, count, wants)
            for slot, start, count, wants in zip(rows.slot, rows.start, rows.count, rows.wants_logits, strict=True)
        ]

    def _check_step(self, plan: StepPlan, rows: Sequence[Row]) -> None:
        done = rows or plan.encode or plan.saves or plan.loads or plan.revoke or plan.begin
        assert done or self._steps_along, "an empty step"
        if not rows:
            expected = Kind.ENCODE if plan.encode else Kind.IDLE
            assert plan.kind == expected, f"a step without rows calls itself {plan.kind}"
            return
        assert len({slot.stay for slot, *_ in rows}) == len(rows), "a request has two rows"
        assert plan.tokens <= self._limits.max_num_batched_tokens, "the step is over its budget"
        decoding = [slot.computed is not None and start >= len(slot.begin.ids) for slot, start, *_ in rows]
        kind = Kind.DECODE if all(decoding) else Kind.MIXED if any(decoding) else Kind.PREFILL
        kind = Kind.PREFILL if kind is Kind.DECODE and any(plan.rows.drafts) else kind
        assert plan.kind == kind, f"a {kind} step calls itself {plan.kind}"
        assert self._limits.mixed_batches or kind is not Kind.MIXED, "prompts and decoding rows are mixed"

    def _check_row(self, row: Row) -> None:
        slot, start, count, wants_logits = row
        end = start + count
        assert count > 0
        if slot.fault is not None:
            return
        assert slot.computed is None or start == slot.computed, "tokens are skipped or computed twice"
        known = len(slot.ids) + len(slot.drafts)
        assert end <= known, "tokens are computed that nobody knows"
        assert wants_logits == (end == known), "only the last known token samples"
        assert count == 1 + len(slot.drafts) or not slot.drafts, "drafts behind more than one token"
        most = None if slot.begin.params is None else slot.begin.params.max_tokens
        assert most is None or not slot.drafts or known - slot.begin.prompt < most, "drafts beyond the answer's end"
        assert end == len(slot.begin.ids) or self._limits.chunked_prefill or start >= len(slot.begin.ids), "a chunk"
        for media in slot.begin.media:
            done, _ = self._encoded.get(media.hash, (0, 0))
            needed = media.start < end and start < media.stop and not media.cross
            assert not needed or done == self._limits.encoder_parts, (
                "tokens are computed whose embeddings are not there"
            )
        for group in self._groups:
            table = slot.tables[group.index]
            assert len(table) * self._block_size >= end, "tokens have no block"
            self._check_prefix(slot, table, group, start)

    def _check_prefix(self, slot: FakeSlot, table: Sequence[int], group: KVGroup, start: int) -> None:
        """What the row reads from the cache must be the slot's own tokens."""
        for index in range(_first_seen(group, start) // self._block_size, -(-start // self._block_size)):
            first = max(index * self._block_size, _first_seen(group, start))
            last = min((index + 1) * self._block_size, start)
            content = self._content[group.index].get(table[index], [])
            found = content[first % self._block_size : (last - 1) % self._block_size + 1]
            if SPOILT in found:
                slot.fault = NOT_FINITE
                return
            assert found == slot.states[first:last], f"block {table[index]} does not hold the prefix"

    def _write(self, row: Row, named: dict[int, set[int]]) -> None:
        slot, start, count, _ = row
        size, states = self._block_size, slot.expected
        if slot.fault is None:
            self._check_item(slot, named)
        for group in self._groups:
            table = slot.tables[group.index]
            if group.kind == "state":
                self._write_states(row, group, named)
                continue
            for position in range(start, start + count):
                content = self._own(group.index, table[position // size], slot.stay, named)
                content[position % size] = _written(slot, states, position)
            for block in table[_first_seen(group, start) // size : -(-(start + count) // size)]:
                named.setdefault(block, set()).add(slot.stay)
        slot.computed = start + count

    def _write_states(self, row: Row, group: KVGroup, named: dict[int, set[int]]) -> None:
        """A block holds one state, so nothing but its last token's; only some have a block, the last always. Every
        state that the row may have to go on from has one.
        """
        slot, start, count, _ = row
        table, size, end = slot.tables[group.index], self._block_size, start + count
        drafted = slot.draft_states[group.index]
        assert len(drafted) == len(slot.drafts), "a state before a draft has no block"
        targets = dict(enumerate(drafted, end - 1 - len(drafted)))
        borders = [min((column + 1) * size, end) - 1 for column in range(start // size, -(-end // size))]
        targets |= {at: table[at // size] for at in borders if at == end - 1 or table[at // size] != NULL_BLOCK}
        for position, block in targets.items():
            content = self._own(group.index, block, slot.stay, named)
            content[:] = [None] * size
            content[position % size] = _written(slot, slot.expected, position)
        for block in (*table[max(0, start - 1) // size : -(-end // size)], *drafted):
            if block != NULL_BLOCK:
                named.setdefault(block, set()).add(slot.stay)

    def _own(self, group: int, block: int, stay: int, named: dict[int, set[int]]) -> list[int | None]:
        """The content of a block that the request of this stay may write in this group."""
        assert block != NULL_BLOCK, "the null block is written"
        for plan in (*self._named, named):
            assert plan.get(block, {stay}) <= {stay}, f"block {block} is written while another request uses it"
        self._items.pop(block, None)
        for other, content in enumerate(self._content):
            if other != group:
                content.pop(block, None)
        return self._content[group].setdefault(block, [None] * self._block_size)


def _written(slot: FakeSlot, states: Sequence[int], position: int) -> int | None:
    """The value that a slot's row writes to the cache for a token; a corrupt one if the row has failed."""
    if slot.fault is None:
        return states[position]
    return SPOILT if slot.fault == NOT_FINITE else None


def _first_seen(group: KVGroup, position: int) -> int:
    """The first position a token sees."""
    return 0 if group.window is None else max(0, position - group.window + 1)


def _allowed(masks: Masks) -> dict[int, list[set[int]]]:
    """By row, the tokens that its grammar allows in each place."""
    size = len(masks.words) // len(masks.rows)
    found: dict[int, list[set[int]]] = {}
    for place, row in enumerate(masks.rows):
        bits = int.from_bytes(masks.words[place * size : (place + 1) * size], "little")
        found.setdefault(row, []).append({token for token in range(fake_tokens.VOCABULARY) if bits >> token & 1})
    return found


def _results(plan: StepPlan, rows: Sequence[Row], allowed: Mapping[int, list[set[int]]], draft: Draft) -> StepResult:
    failed = {row: slot.fault for row, (slot, *_) in enumerate(rows) if slot.fault is not None}
    prompt_logprobs = {row: scores for row, scores in enumerate(map(_score, rows)) if scores is not None}
    wanting = [(row, slot) for row, (slot, _, _, wants) in enumerate(rows) if wants and row not in failed]
    vectors = {row: fake_tokens.vector(slot.states[-1]) for row, slot in wanting if slot.begin.pooling is not None}
    sampled = {row: slot.verify(allowed.get(row, ())) for row, slot in wanting if slot.begin.pooling is None}
    kept = list(plan.rows.count)
    for row, tokens in sampled.items():
        slot = rows[row][0]
        kept[row] -= len(slot.drafts) + 1 - len(tokens)
        slot.computed = plan.rows.start[row] + kept[row]
        slot.drafts = ()
        slot.proposed = tuple(draft(slot, plan.rows.propose[row])) if plan.rows.propose else ()
    return StepResult(
        step=plan.step,
        seconds=0.0,
        tokens=tuple(sampled.get(row, ()) for row in range(len(rows))),
        kept=tuple(kept),
        drafts=tuple(slot.proposed if row in sampled else () for row, (slot, *_) in enumerate(rows))
        if plan.rows.propose
        else (),
        logprobs=dict(_chosen(rows, sampled)),
        prompt_logprobs=prompt_logprobs,
        vectors=vectors,
        failed=failed,
        distrusted=tuple(row for row, why in failed.items() if why == NOT_FINITE),
    )


def _chosen(rows: Sequence[Row], sampled: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[int, Logprobs]]:
    for row, tokens in sampled.items():
        params = rows[row][0].begin.params
        if params is not None and params.logprobs is not None:
            yield row, fake_tokens.logprobs(tokens, params.logprobs)


def _score(row: Row) -> Logprobs | None:
    slot, start, count, _ = row
    params = slot.begin.params
    scored = slot.ids[start + 1 : min(start + count + 1, slot.begin.prompt)]
    if params is None or params.prompt_logprobs is None or not scored:
        return None
    return fake_tokens.logprobs(scored, params.prompt_logprobs)
