"""Gives requests their blocks, finds cached prefixes, and takes blocks back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from lsv.kv.blocks import NULL_BLOCK, BlockPool
from lsv.kv.checkpoints import Branches
from lsv.kv.draft_states import DraftStates
from lsv.kv.finder import PrefixFinder
from lsv.kv.lookup import Match
from lsv.kv.pending import PendingBlocks
from lsv.kv.prefix import cross_hashes
from lsv.kv.revocations import Revocations
from lsv.kv.spec import KVGroup, find_cohorts, held_blocks, longest_length
from lsv.kv.table import Table
from lsv.kv.tiers.arrivals import Arrivals
from lsv.kv.tiers.tiers import Tiers
from lsv.request.request import Request


class KVManager:
    """Keeps the books of one pool of ``num_blocks`` blocks, numbered from 1, from which all groups draw.

    Block 0 is the null block, so a worker allocates ``num_blocks + 1`` pages. ``root`` starts all hash chains
    (``kv.prefix.root_hash``). Cross groups come last: they hold the media item that a request attends to, which is
    written once and shared by all requests with the same item. What is done for a request is done once for each cohort,
    however many groups that has.

    A block of a state group holds the state behind its last token that is computed: while a block fills up the
    request's state, and the checkpoint of its border from then on, from which others can go on. Not every border gets
    one (``_state_columns``, ``lsv.kv.checkpoints``), and those that an answer passes are forgotten but for the last.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        block_size: int,
        *,
        root: bytes,
        prefix_caching: bool = True,
        tiers: Tiers | None = None,
    ) -> None:
        growing = [group for group in groups if group.kind != "cross"]
        cohorts = find_cohorts(groups)
        assert all(group.kind == "cross" for group in groups[len(growing) :]), "cross groups come last"
        self.groups = tuple(groups)
        self.growing_groups = len(growing)
        """Groups that keep something of every token."""
        self._cohorts = tuple(cohort for cohort in cohorts if cohort.first < len(growing))
        self._cross_cohorts = cohorts[len(self._cohorts) :]
        self.block_size = block_size
        self.prefix_caching = prefix_caching and bool(groups)
        self.tiers = tiers
        """What is behind the device; None where nothing is."""
        self.pending = PendingBlocks()
        self._state_groups = sum(group.kind == "state" for group in groups)
        self._token_groups = self.growing_groups - self._state_groups
        self._branches = Branches()
        self._root = root
        self._pool = BlockPool(num_blocks)
        self._reserved = 0
        self._finder = PrefixFinder(self._pool, self._cohorts, self._cross_cohorts, block_size, root)
        self.arrivals: Arrivals | None = None
        """What comes behind the device for those who wait; None where nothing is behind it."""
        if tiers is not None and self._cohorts and self.prefix_caching:
            widths = (cohort.width for cohort in self._cohorts)
            self.arrivals = Arrivals(self._pool, dict(zip(self._finder.prefixes, widths, strict=True)), tiers)
        self.revocations = Revocations(self._pool, self._finder, self.arrivals, tiers)
        self.draft_states = DraftStates(self._pool, self._cohorts, block_size) if self._state_groups else None
        """Room for states behind drafts; None where no layer is recurrent."""

    @property
    def windowed(self) -> bool:
        """Whether any of the groups forgets tokens."""
        return any(cohort.window is not None for cohort in self._cohorts)

    @property
    def cross_len(self) -> int | None:
        """The most embeddings a request cross-attends to; None for a model without cross-attention."""
        return self.groups[-1].cross_len if self._cross_cohorts else None

    @property
    def num_blocks(self) -> int:
        return self._pool.size

    @property
    def unreserved(self) -> int:
        """Available blocks that are reserved for nobody."""
        return self._pool.available - self._reserved

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 … 1; cached blocks that nobody uses do not count."""
        return 1.0 - self._pool.available / self._pool.size if self._pool.size else 0.0

    def blocks_for(self, length: int, step_tokens: int) -> int:
        """Most blocks a request of ``length`` tokens holds at a time with ``step_tokens`` tokens in flight."""
        cohorts = self._cohorts + self._cross_cohorts
        return held_blocks(length, cohorts, self.block_size, step_tokens)

    def longest(self, step_tokens: int) -> int:
        """The most tokens that one request can have with all blocks to itself."""
        return longest_length(self.num_blocks, self.groups, self.block_size, step_tokens)

    def open(self, request: Request) -> Table:
        """An empty table for a new request."""
        table = Table(request, self._cohorts, self._cross_cohorts)
        item = request.cross_item
        if item is not None:
            blocks = -(-item.count // self.block_size)
            table.cross_hashes = cross_hashes(self._root, item.hash, blocks, salt=table.salt)
        return table

    # Prefixes

    def match(self, table: Table, limit: int) -> Match:
        """The longest cached prefix of at most ``limit`` tokens for which every group has what it needs.

        A request that waits is looked up again only where that may find more. What is behind the device counts.
        """
        if not self.prefix_caching:
            return Match(0, tuple([] for _ in table.blocks))
        match = self._finder.match(table, limit)
        return match if self.tiers is None else self._finder.extend(table, match, limit, self.tiers.look)

    def names(self, request: Request) -> list[bytes]:
        """The contents of its prompt that a request could begin behind, in the order in which they are computed."""
        hashes = self._finder.hashes(self.open(request), (len(request.prompt) - 1) // self.block_size)
        return list(self._finder.keys(hashes))

    def missing(self, request: Request) -> list[bytes]:
        """Those of its ``names`` that are not cached anywhere."""
        names = self.names(request)
        has = (lambda key: False) if self.tiers is None else self.tiers.look(names)
        return [key for key in names if self._pool.find(key) is None and not has(key)]

    def find_pending(self, table: Table, match: Match, limit: int) -> bytes | None:
        """The hash to wait for if a running request is computing the block that follows ``match``; else None.

        It is that of the last consecutive block which that request computes and this one needs, too. Where states are
        kept it is that of the last checkpoint which any request will leave and this one can go on from.
        """
        if not self.prefix_caching:
            return None
        if table.cross_hashes and not match.cross and self.pending.owner(table.cross_hashes[0]) is not None:
            return table.cross_hashes[0]
        first, stop = match.tokens // self.block_size, limit // self.block_size
        if first >= stop:
            return None
        hashes = self._finder.hashes(table, stop)
        if self._state_groups:
            return next((one for one in reversed(hashes[first:]) if self.pending.owner(one) is not None), None)
        owner = self.pending.owner(hashes[first])
        if owner is None:
            return None
        last = first
        while last + 1 < stop and self.pending.owner(hashes[last + 1]) == owner:
            last += 1
        return hashes[last]

    def in_use(self, match: Match) -> int:
        """Blocks of a match that others use: sharing these leaves as many blocks available as before."""
        return self._finder.in_use(match)

    # Blocks

    def allocate(self, table: Table, match: Match, length: int, reservation: int) -> None:
        """Take a match into an empty table, and allocate blocks for the media item if the cache does not hold it.

        What the request is going to compute is pending from now on: the item, and the full blocks from the match up to
        ``length`` tokens. With a ``reservation``, blocks stay available so that the request can always hold that many.
        Where windows forget tokens, such a request shares no blocks (the match must be empty): a block that it drops
        behind the window would not become available while others use it.
        """
        assert not (reservation and self.windowed and match.tokens), "a reservation and shared blocks behind a window"
        shared = 0
        for cohort, block in self._finder.blocks(match):
            self._pool.ref(block)
            shared += cohort.width
        tables = table.blocks + table.cross if match.cross else table.blocks
        for blocks, cached in zip(tables, match.blocks + match.cross, strict=True):
            blocks += cached
        if table.request.spec.hand_on:
            self._keep(table, match)
        if match.missing:
            shared += self._fetch(table, match)
        table.capacity = match.tokens
        table.published = (match.tokens - match.behind) // self.block_size
        columns = match.tokens // self.block_size
        for index, window_blocks in enumerate(self._finder.window_blocks):
            table.dropped[index] = 0 if window_blocks is None else max(0, columns - window_blocks)
        table.reservation = reservation
        self._reserved += reservation
        self._count_allocated(table, shared)
        table.cross_ready = bool(match.cross)
        if table.cross_hashes and not table.cross_ready:
            self._allocate_cross(table)
        if self._shares(table):
            table.pending_until = length // self.block_size
            hashes = self._finder.hashes(table, table.pending_until)
            if self._state_groups:
                self._promise(table, hashes, (length - 1) // self.block_size)
            else:
                self.pending.add(hashes[table.published :], table.request.id)

    def _keep(self, table: Table, match: Match) -> None:
        """What of a match is on the device goes behind it, for others, if it is not there any more."""
        if self.tiers is None:
            return
        for prefix, cohort, blocks in zip(self._finder.prefixes, self._cohorts, match.blocks, strict=True):
            for one, block in zip(table.hashes, blocks[:: cohort.width], strict=False):
                if block != NULL_BLOCK:
                    self.tiers.keep(prefix + one, self._pool.bundle(block))

    def _fetch(self, table: Table, match: Match) -> int:
        """Take blocks for what is behind the device, to be loaded before the first step; returns how many.

        Like blocks that are computed, others find them once that step has settled.
        """
        assert self.tiers is not None, "there is nothing behind the device"
        taken, hashes = 0, table.hashes
        for index, column in match.missing:
            width = self._cohorts[index].width
            blocks = self._pool.take(1, width)
            table.blocks[index][column * width : (column + 1) * width] = blocks
            table.loads.append(self.tiers.load(self._finder.prefixes[index] + hashes[column], blocks))
            taken += width
        return taken

    def _promise(self, table: Table, hashes: Sequence[bytes], most: int) -> None:
        """Say where the request will leave checkpoints: others wait for these alone. After at most ``most`` blocks a
        request with the same tokens can go on.
        """
        ends = {most, min(most, self._branches.note(hashes))}
        table.checkpoints = frozenset(end - 1 for end in ends if end > table.published)
        self.pending.add([hashes[column] for column in sorted(table.checkpoints)], table.request.id)

    def _allocate_cross(self, table: Table) -> None:
        """Blocks for an item whose K and V are still to be computed."""
        size = len(table.cross_hashes)
        for cohort, blocks in zip(self._cross_cohorts, table.cross, strict=True):
            blocks += self._pool.take(size, cohort.width)
            self._count_allocated(table, size * cohort.width)
        if self._shares(table):
            table.cross_pending = table.cross_hashes[0]
            self.pending.add((table.cross_pending,), table.request.id)

    def _shares(self, table: Table) -> bool:
        return self.prefix_caching and not (table.reservation and self.windowed)

    def _count_allocated(self, table: Table, change: int) -> None:
        before = table.reserved
        table.allocated += change
        self._reserved += table.reserved - before

    def grow(self, table: Table, tokens: int, drafts: int = 0) -> bool:
        """Allocate blocks for ``tokens`` tokens in all, of which the last ones may be drafts; returns False and changes
        nothing if too few are available.
        """
        size = self.block_size
        missing = -(-(tokens - table.capacity) // size)
        if missing <= 0 or not table.blocks:
            return True
        first = table.capacity // size
        states = self._state_columns(table, first, tokens, drafts) if self._state_groups else []
        needed = missing * self._token_groups + len(states) * self._state_groups
        if needed > self.unreserved + table.reserved:
            return False
        for cohort, blocks in zip(self._cohorts, table.blocks, strict=True):
            if not cohort.state:
                blocks += self._pool.take(missing, cohort.width)
                continue
            begin, width = len(blocks), cohort.width
            blocks += [NULL_BLOCK] * (missing * width)
            for column in states:
                place = begin + (column - first) * width
                blocks[place : place + width] = self._pool.take(1, width)
        table.capacity += missing * size
        self._count_allocated(table, needed)
        return True

    def _state_columns(self, table: Table, first: int, tokens: int, drafts: int) -> list[int]:
        """Which blocks from number ``first`` on hold a state, for a chunk that ends at ``tokens``: its end, where the
        request goes on, and for others its last border and those that were promised. Where its last tokens are drafts
        it may turn out to end at any of them.
        """
        last, end = tokens // self.block_size - 1, (tokens - 1) // self.block_size
        kept = {*range((tokens - 1 - drafts) // self.block_size, end + 1)}
        if self._shares(table):
            kept |= {last, *table.checkpoints}
        return sorted(column for column in kept if first <= column <= end)

    def settle(self, table: Table, computed: int) -> int:
        """``computed`` tokens have their KV: publish full blocks and give back those behind windows.

        No plan in flight reads the latter, because its queries are at ``computed`` or later. Returns the count of
        computed tokens from which on there is something to do again.
        """
        full = computed // self.block_size
        if full > table.published and self._shares(table):
            self._publish(table, full)
        if table.cross_pending is not None:
            self._publish_cross(table, table.cross_pending)
        following = (full + 1) * self.block_size
        for index, cohort in enumerate(self._cohorts):
            if cohort.window is not None:
                following = min(following, self._drop_behind(table, index, cohort.window, computed))
        return following

    def _publish(self, table: Table, full: int) -> None:
        hashes = self._finder.hashes(table, full)
        for cohort, prefix, blocks in zip(self._cohorts, self._finder.prefixes, table.blocks, strict=True):
            for index in range(table.published, full):
                block = blocks[index * cohort.width]
                if block != NULL_BLOCK:
                    self._pool.publish(block, prefix + hashes[index])
                    if self.tiers is not None:
                        self.tiers.save(prefix + hashes[index], self._pool.bundle(block))
        self.pending.settle(hashes[table.published : min(full, table.pending_until)], table.request.id)
        table.published = full

    def _publish_cross(self, table: Table, pending: bytes) -> None:
        for cohort, prefix, blocks in zip(self._cross_cohorts, self._finder.cross_prefixes, table.cross, strict=True):
            for block, name in zip(blocks[:: cohort.width], table.cross_hashes, strict=True):
                self._pool.publish(block, prefix + name)
        self.pending.settle((pending,), table.request.id)
        table.cross_pending = None

    def _drop_behind(self, table: Table, cohort: int, window: int, computed: int) -> int:
        """Give a cohort's blocks behind the window back; returns the count of computed tokens that frees the next."""
        size, blocks, width = self.block_size, table.blocks[cohort], self._cohorts[cohort].width
        done, first = table.dropped[cohort], max(0, computed - window + 1) // size
        if first > done:
            held = [block for block in blocks[done * width : first * width : width] if block != NULL_BLOCK]
            for block in held:
                self._pool.unref(block)
            blocks[done * width : first * width] = [NULL_BLOCK] * ((first - done) * width)
            self._count_allocated(table, -len(held) * width)
            if self._cohorts[cohort].state:
                self._forget_passed(table, cohort, done - 1, first - 1)
            table.dropped[cohort] = done = first
        return (done + 1) * size + window - 1

    def _forget_passed(self, table: Table, cohort: int, first: int, stop: int) -> None:
        """Of the checkpoints that an answer leaves behind as it grows, only the last one is worth its memory: that is
        where the request goes on after a preemption, and the next turn of a conversation.
        """
        prompt, prefix = len(table.request.prompt) // self.block_size, self._finder.prefixes[cohort]
        for column in range(max(first, prompt), min(stop, table.published)):
            if column not in table.checkpoints:
                self._pool.forget(prefix + table.hashes[column])

    def release(self, tables: Iterable[Table]) -> None:
        """Take back all blocks of requests that are done with them at the same time.

        Of these, the block at the end of the longest prefix is unreferenced first, and so is evicted first.
        """
        listed: list[tuple[int, int]] = []
        for table in tables:
            listed += table.listed()
            if self.draft_states is not None:
                self.draft_states.drop(table)
            self._reserved -= table.reserved
            self.pending.settle(table.hashes[table.published : table.pending_until], table.request.id)
            if table.cross_pending is not None:
                self.pending.settle((table.cross_pending,), table.request.id)
            table.clear()
        listed.sort(key=lambda place_and_block: -place_and_block[0])
        for _, block in listed:
            self._pool.unref(block)

    def reset_prefix_cache(self, *, host: bool = True) -> None:
        """Forget all cached content, that of ``host`` memory too; running requests keep their blocks."""
        self._pool.clear_cache()
        if self.tiers is not None and host:
            self.tiers.clear()

    def check(self, tables: Sequence[Table]) -> None:
        """Assert that blocks, references and reservations add up; ``tables`` are all that hold blocks."""
        for table in tables:
            columns = table.capacity // self.block_size
            for cohort, blocks in zip(self._cohorts, table.blocks, strict=True):
                assert len(blocks) == columns * cohort.width, "the tables of a request differ in length"
            items = len(table.cross_hashes) if table.allocated else 0
            for cohort, blocks in zip(self._cross_cohorts, table.cross, strict=True):
                assert len(blocks) == items * cohort.width, "a cross group does not fit the item"
            bundles = [self._pool.bundle(block) for _, block in table.listed()]
            assert table.allocated == sum(map(len, bundles)), "a table miscounts its blocks"
            held = [block for blocks in (*table.blocks, *table.cross) for block in blocks if block != NULL_BLOCK]
            assert sorted(held) == sorted(block for bundle in bundles for block in bundle), "a bundle is torn apart"
        listed = (block for table in tables for _, block in table.listed())
        drafted = 1 if self.draft_states is None else self.draft_states.width
        lent = (block for table in tables for block in table.draft_states[::drafted])
        self._pool.check(chain(listed, lent, () if self.arrivals is None else self.arrivals.blocks))
        assert self._reserved == sum(table.reserved for table in tables), "reservations do not add up"
        assert 0 <= self._reserved <= self._pool.available, "more is reserved than is available"
