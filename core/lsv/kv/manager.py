"""Gives requests their blocks, finds cached prefixes, and takes blocks back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lsv.errors import ConfigError
from lsv.kv.blocks import NULL_BLOCK, BlockPool
from lsv.kv.pending import PendingBlocks
from lsv.kv.prefix import block_hash, cross_hashes
from lsv.kv.spec import KVGroup, blocks_for, longest_length
from lsv.kv.table import Table
from lsv.request.request import Request


class Match(msgspec.Struct, frozen=True):
    """The longest prefix of a request that is in the cache."""

    tokens: int
    """Its length, a whole number of blocks."""
    blocks: tuple[list[int], ...]
    """Its blocks by group; the null block where the group's window needs none."""
    cross: tuple[list[int], ...] = ()
    """The blocks of the cross groups, if these hold the request's media item; else empty."""


class KVManager:
    """Keeps the books of one pool of ``num_blocks`` blocks, numbered from 1, from which all groups draw.

    Block 0 is the null block, so a worker allocates ``num_blocks + 1`` pages. ``root`` starts all hash chains
    (``kv.prefix.root_hash``). Cross groups come last: they hold the media item that a request attends to, which is
    written once and shared by all requests with the same item. Raises ``ConfigError`` for a kind of group that can't
    be paged.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        block_size: int,
        *,
        root: bytes,
        prefix_caching: bool = True,
    ) -> None:
        for group in groups:
            if group.kind not in ("full", "window", "latent", "cross"):
                raise ConfigError(
                    f"KV group {group.index} is of kind {group.kind}; the cache holds full, window, latent and cross"
                )
        growing = [group for group in groups if group.kind != "cross"]
        assert all(group.kind == "cross" for group in groups[len(growing) :]), "cross groups come last"
        self.groups = tuple(groups)
        self.growing_groups = len(growing)
        self.block_size = block_size
        self.prefix_caching = prefix_caching and bool(groups)
        self.pending = PendingBlocks()
        self._root = root
        self._pool = BlockPool(num_blocks)
        self._reserved = 0
        # By group, how many blocks before a position are needed to compute on from there; None means all of them.
        self._window_blocks = tuple(
            None if group.window is None else -(-(group.window - 1) // block_size) for group in growing
        )
        prefixes = tuple(group.index.to_bytes(2, "little") for group in groups)
        self._prefixes, self._cross_prefixes = prefixes[: self.growing_groups], prefixes[self.growing_groups :]

    @property
    def windowed(self) -> bool:
        """Whether any group forgets tokens."""
        return any(window_blocks is not None for window_blocks in self._window_blocks)

    @property
    def cross_len(self) -> int | None:
        """The most embeddings a request cross-attends to; None for a model without cross-attention."""
        return self.groups[-1].cross_len if self._cross_prefixes else None

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
        return blocks_for(length, self.groups, self.block_size, step_tokens)

    def longest(self, step_tokens: int) -> int:
        """The most tokens that one request can have with all blocks to itself."""
        return longest_length(self.num_blocks, self.groups, self.block_size, step_tokens)

    def open(self, request: Request) -> Table:
        """An empty table for a new request."""
        table = Table(request, self.growing_groups, len(self._cross_prefixes))
        item = request.cross_item
        if item is not None:
            blocks = -(-item.count // self.block_size)
            table.cross_hashes = cross_hashes(self._root, item.hash, blocks, salt=request.salt)
        return table

    # Prefixes

    def match(self, table: Table, limit: int) -> Match:
        """The longest cached prefix of at most ``limit`` tokens for which every group has what it needs."""
        if not self.prefix_caching:
            return Match(0, tuple([] for _ in table.blocks))
        hashes = self._hashes(table, limit // self.block_size)
        length = self._longest_cached(hashes)
        blocks = tuple(self._cached(group, hashes[:length]) for group in range(self.growing_groups))
        return Match(length * self.block_size, blocks, self._cached_cross(table))

    def find_pending(self, table: Table, match: Match, limit: int) -> bytes | None:
        """The hash to wait for if a running request is computing the block that follows ``match``; else None.

        It is that of the last consecutive block which that request computes and this one needs, too.
        """
        if not self.prefix_caching:
            return None
        if self._cross_prefixes and not match.cross and self.pending.owner(table.cross_hashes[0]) is not None:
            return table.cross_hashes[0]
        hashes = self._hashes(table, limit // self.block_size)[match.tokens // self.block_size :]
        owner = self.pending.owner(hashes[0]) if hashes else None
        if owner is None:
            return None
        last = hashes[0]
        for one in hashes[1:]:
            if self.pending.owner(one) != owner:
                break
            last = one
        return last

    def in_use(self, match: Match) -> int:
        """Blocks of a match that others use: sharing these leaves as many blocks available as before."""
        found = (*match.blocks, *match.cross)
        return sum(block != NULL_BLOCK and not self._pool.is_cached(block) for blocks in found for block in blocks)

    def _hashes(self, table: Table, count: int) -> list[bytes]:
        """Hashes of the first ``count`` full blocks of prompt and output."""
        hashes, size = table.hashes, self.block_size
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else self._root
            start, stop = index * size, (index + 1) * size
            hashes.append(block_hash(parent, table.request.ids(start, stop), table.extras(start, stop)))
        return hashes[:count]

    def _longest_cached(self, hashes: Sequence[bytes]) -> int:
        length = len(hashes)
        for group, window_blocks in enumerate(self._window_blocks):
            if window_blocks is None:
                length = self._run(group, hashes[:length])
        while (shorter := self._window_end(hashes, length)) < length:
            length = shorter
        return length

    def _run(self, group: int, hashes: Sequence[bytes]) -> int:
        """How many of the leading hashes a group has."""
        prefix, find = self._prefixes[group], self._pool.find
        for index, one in enumerate(hashes):
            if find(prefix + one) is None:
                return index
        return len(hashes)

    def _window_end(self, hashes: Sequence[bytes], length: int) -> int:
        """``length`` if every windowed group has the blocks it needs before it, else the next shorter candidate."""
        for group, window_blocks in enumerate(self._window_blocks):
            if window_blocks is None:
                continue
            prefix = self._prefixes[group]
            for index in range(length - 1, max(length - window_blocks, 0) - 1, -1):
                if self._pool.find(prefix + hashes[index]) is None:
                    return index
        return length

    def _cached(self, group: int, hashes: Sequence[bytes]) -> list[int]:
        prefix, window_blocks = self._prefixes[group], self._window_blocks[group]
        behind = 0 if window_blocks is None else max(0, len(hashes) - window_blocks)
        found = [self._pool.find(prefix + one) for one in hashes[behind:]]
        return [NULL_BLOCK] * behind + [block for block in found if block is not None]

    def _cached_cross(self, table: Table) -> tuple[list[int], ...]:
        """The media item's blocks, if every cross group has all of them."""
        found = [[self._pool.find(prefix + name) for name in table.cross_hashes] for prefix in self._cross_prefixes]
        whole = tuple([block for block in blocks if block is not None] for blocks in found)
        return whole if all(len(blocks) == len(table.cross_hashes) for blocks in whole) else ()

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
        tables = table.blocks + table.cross if match.cross else table.blocks
        for blocks, cached in zip(tables, match.blocks + match.cross, strict=True):
            for block in cached:
                if block != NULL_BLOCK:
                    self._pool.ref(block)
                    shared += 1
            blocks += cached
        table.capacity = match.tokens
        table.published = match.tokens // self.block_size
        for group, window_blocks in enumerate(self._window_blocks):
            table.dropped[group] = 0 if window_blocks is None else max(0, table.published - window_blocks)
        table.reservation = reservation
        self._reserved += reservation
        self._count_allocated(table, shared)
        table.cross_ready = bool(match.cross)
        if self._cross_prefixes and not table.cross_ready:
            self._allocate_cross(table)
        if self._shares(table):
            table.pending_until = length // self.block_size
            self.pending.add(self._hashes(table, table.pending_until)[table.published :], table.request.id)

    def _allocate_cross(self, table: Table) -> None:
        """Blocks for an item whose K and V are still to be computed."""
        size = len(table.cross_hashes)
        for blocks in table.cross:
            blocks += self._pool.take(size)
        self._count_allocated(table, size * len(table.cross))
        if self._shares(table):
            table.cross_pending = table.cross_hashes[0]
            self.pending.add((table.cross_pending,), table.request.id)

    def _shares(self, table: Table) -> bool:
        return self.prefix_caching and not (table.reservation and self.windowed)

    def _count_allocated(self, table: Table, change: int) -> None:
        before = table.reserved
        table.allocated += change
        self._reserved += table.reserved - before

    def grow(self, table: Table, tokens: int) -> bool:
        """Allocate blocks for ``tokens`` tokens in all; returns False and changes nothing if too few are available."""
        size = self.block_size
        missing = -(-(tokens - table.capacity) // size)
        if missing <= 0 or not table.blocks:
            return True
        needed = missing * len(table.blocks)
        if needed > self.unreserved + table.reserved:
            return False
        for blocks in table.blocks:
            blocks += self._pool.take(missing)
        table.capacity += missing * size
        self._count_allocated(table, needed)
        return True

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
        for group in self.groups:
            if group.window is not None:
                following = min(following, self._drop_behind(table, group.index, group.window, computed))
        return following

    def _publish(self, table: Table, full: int) -> None:
        hashes = self._hashes(table, full)
        for group, prefix in enumerate(self._prefixes):
            blocks = table.blocks[group]
            for index in range(table.published, full):
                if blocks[index] != NULL_BLOCK:
                    self._pool.publish(blocks[index], prefix + hashes[index])
        self.pending.settle(hashes[table.published : min(full, table.pending_until)], table.request.id)
        table.published = full

    def _publish_cross(self, table: Table, pending: bytes) -> None:
        for prefix, blocks in zip(self._cross_prefixes, table.cross, strict=True):
            for block, name in zip(blocks, table.cross_hashes, strict=True):
                self._pool.publish(block, prefix + name)
        self.pending.settle((pending,), table.request.id)
        table.cross_pending = None

    def _drop_behind(self, table: Table, group: int, window: int, computed: int) -> int:
        """Give a group's blocks behind the window back; returns the count of computed tokens that frees the next."""
        size, blocks = self.block_size, table.blocks[group]
        first = max(0, computed - window + 1) // size
        for index in range(table.dropped[group], first):
            self._pool.unref(blocks[index])
            blocks[index] = NULL_BLOCK
        self._count_allocated(table, table.dropped[group] - first if first > table.dropped[group] else 0)
        table.dropped[group] = max(first, table.dropped[group])
        return (table.dropped[group] + 1) * size + window - 1

    def release(self, tables: Iterable[Table]) -> None:
        """Take back all blocks of requests that are done with them at the same time.

        Of these, the block at the end of the longest prefix is unreferenced first, and so is evicted first.
        """
        listed: list[tuple[int, int]] = []
        for table in tables:
            listed += table.listed()
            self._reserved -= table.reserved
            self.pending.settle(table.hashes[table.published : table.pending_until], table.request.id)
            if table.cross_pending is not None:
                self.pending.settle((table.cross_pending,), table.request.id)
            table.clear()
        listed.sort(key=lambda place_and_block: -place_and_block[0])
        for _, block in listed:
            self._pool.unref(block)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content; running requests keep their blocks."""
        self._pool.clear_cache()

    def check(self, tables: Sequence[Table]) -> None:
        """Assert that blocks, references and reservations add up; ``tables`` are all that hold blocks."""
        for table in tables:
            lengths = {len(blocks) * self.block_size for blocks in table.blocks}
            assert lengths <= {table.capacity}, "the tables of a request differ in length"
            items = {len(blocks) for blocks in table.cross}
            assert items <= {len(table.cross_hashes) if table.allocated else 0}, "a cross group does not fit the item"
            assert table.allocated == len(table.listed()), "a table miscounts its blocks"
        self._pool.check(block for table in tables for _, block in table.listed())
        assert self._reserved == sum(table.reserved for table in tables), "reservations do not add up"
        assert 0 <= self._reserved <= self._pool.available, "more is reserved than is available"
