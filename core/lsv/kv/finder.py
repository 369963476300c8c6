"""Finds the cached prefix of a request by the hashes of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from lsv.kv.blocks import NULL_BLOCK, BlockPool
from lsv.kv.lookup import Lookup, Match
from lsv.kv.spec import Cohort
from lsv.kv.table import Table

Find = Callable[[bytes], int | None]
"""Returns the block of a content, the null block if a lower tier has it, or None."""
Look = Callable[[Sequence[bytes]], Callable[[bytes], bool]]
"""For contents in order, returns a function that says whether a lower tier has a content."""


class PrefixFinder:
    """Looks for contents in a pool. ``cohorts`` keep the request's tokens, ``cross`` its media item.

    ``root`` starts all hash chains.
    """

    def __init__(
        self, pool: BlockPool, cohorts: Sequence[Cohort], cross: Sequence[Cohort], block_size: int, root: bytes
    ) -> None:
        self._pool = pool
        self._cohorts = tuple(cohorts)
        self._cross_cohorts = tuple(cross)
        self.block_size = block_size
        self._root = root
        self._looked_up: Table | None = None
        prefixes = tuple(index.to_bytes(2, "little") for index in range(len(cohorts) + len(cross)))
        self.prefixes, self.cross_prefixes = prefixes[: len(cohorts)], prefixes[len(cohorts) :]
        """By cohort, the prefix of its blocks' hashes in the pool's keys."""
        self.window_blocks = tuple(
            None if cohort.window is None else -(-(cohort.window - 1) // block_size) for cohort in cohorts
        )
        """By cohort, how many blocks before a position are needed to continue there; None means all of them."""

    def match(self, table: Table, limit: int) -> Match:
        """The longest cached prefix of at most ``limit`` tokens for which every cohort has the blocks it needs."""
        lookup = self._pool.lookup
        if lookup is None or lookup.outdated or self._looked_up is not table or lookup.limit != limit:
            return self._look_up(table, limit)
        if lookup.stale:
            self._renew(table, lookup)
        return lookup.match

    def _look_up(self, table: Table, limit: int) -> Match:
        hashes = self.hashes(table, limit // self.block_size)
        length = self._longest(hashes, self._pool.find)
        match = self._match(table, length)
        # Most requests are admitted at the first look, so changes are followed from the second one on.
        self._pool.lookup = self._follow(table, limit, match, hashes) if self._looked_up is table else None
        self._looked_up = table
        return match

    def _match(self, table: Table, length: int, known: Match | None = None) -> Match:
        """The blocks of a cached prefix of this length. ``known`` is an earlier match, at least as long."""
        hashes = self.hashes(table, length)
        blocks = tuple(
            known.blocks[index][: length * cohort.width]
            if known is not None and cohort.keeps_all
            else self._cached(index, hashes)
            for index, cohort in enumerate(self._cohorts)
        )
        return Match(length * self.block_size, blocks, self._cached_cross(table))

    def _follow(self, table: Table, limit: int, match: Match, hashes: Iterable[bytes]) -> Lookup:
        keys = {prefix + one for prefix in self.prefixes for one in hashes}
        keys.update(prefix + name for prefix in self.cross_prefixes for name in table.cross_hashes)
        lookup = Lookup(limit, match, match.tokens // self.block_size, keys)
        for cohort, blocks in zip(self._cohorts, match.blocks, strict=True):
            if cohort.keeps_all:
                for place, block in enumerate(blocks[:: cohort.width]):
                    lookup.follow(block, place, 0 if self._pool.is_cached(block) else cohort.width)
        lookup.renew(match, {block for _, block in self.blocks(match, others=True)})
        return lookup

    def _renew(self, table: Table, lookup: Lookup) -> None:
        """Shorten a match to the blocks that are still cached."""
        known = lookup.match
        before = known.tokens // self.block_size
        hashes = self.hashes(table, lookup.length)
        lookup.length = length = self._window_length(hashes, lookup.length, self._pool.find)
        for cohort, blocks in zip(self._cohorts, known.blocks, strict=True):
            if cohort.keeps_all:
                for block in blocks[length * cohort.width : before * cohort.width : cohort.width]:
                    if lookup.drop(block) and not self._pool.is_cached(block):
                        lookup.in_use -= cohort.width
        match = self._match(table, length, known)
        lookup.renew(match, {block for _, block in self.blocks(match, others=True)})

    def blocks(self, match: Match, *, others: bool = False) -> Iterator[tuple[Cohort, int]]:
        """The first block of each bundle of a match, with its cohort. ``others`` leaves out cohorts that keep all."""
        cohorts = self._cohorts + self._cross_cohorts if match.cross else self._cohorts
        for cohort, blocks in zip(cohorts, match.blocks + match.cross, strict=True):
            if others and cohort.keeps_all:
                continue
            for block in blocks[:: cohort.width]:
                if block != NULL_BLOCK:
                    yield cohort, block

    def in_use(self, match: Match) -> int:
        """Blocks of a match that other requests use. Sharing these takes no available blocks."""
        lookup = self._pool.lookup
        followed = lookup is not None and lookup.match is match
        is_cached = self._pool.is_cached
        found = sum(cohort.width for cohort, block in self.blocks(match, others=followed) if not is_cached(block))
        return found + lookup.in_use if lookup is not None and followed else found

    def hashes(self, table: Table, count: int) -> list[bytes]:
        """Hashes of the first ``count`` full blocks of prompt and output."""
        hashes = table.hashes
        if len(hashes) < count:
            table.hash_blocks(self._root, self.block_size, count)
        return hashes if len(hashes) == count else hashes[:count]

    def keys(self, hashes: Sequence[bytes]) -> Iterator[bytes]:
        """The contents that a request needs to continue after all of these blocks, column by column."""
        for column, one in enumerate(hashes):
            for prefix, window_blocks in zip(self.prefixes, self.window_blocks, strict=True):
                if window_blocks is None or column >= len(hashes) - window_blocks:
                    yield prefix + one

    def extend(self, table: Table, match: Match, limit: int, look: Look) -> Match:
        """Extend a match by blocks in lower tiers, as far as they go; ``look`` finds them."""
        pool, hashes = self._pool, self.hashes(table, limit // self.block_size)
        behind = look([prefix + one for prefix in self.prefixes for one in hashes])

        def find(key: bytes) -> int | None:
            block = pool.find(key)
            return NULL_BLOCK if block is None and behind(key) else block

        length = self._longest(hashes, find)
        if length * self.block_size <= match.tokens:
            return match
        missing: list[tuple[int, int]] = []
        tables: list[list[int]] = []
        for index, (prefix, cohort) in enumerate(zip(self.prefixes, self._cohorts, strict=True)):
            window_blocks = self.window_blocks[index]
            first = 0 if window_blocks is None else max(0, length - window_blocks)
            tables.append([NULL_BLOCK] * (first * cohort.width))
            for column in range(first, length):
                block = pool.find(prefix + hashes[column])
                if block is None:
                    missing.append((index, column))
                tables[-1] += [NULL_BLOCK] * cohort.width if block is None else pool.bundle(block)
        tokens = length * self.block_size
        return Match(tokens, tuple(tables), match.cross, tuple(missing), tokens - match.tokens)

    def _longest(self, hashes: Sequence[bytes], find: Find) -> int:
        length = len(hashes)
        for cohort, window_blocks in enumerate(self.window_blocks):
            if window_blocks is None:
                length = self._run(cohort, hashes[:length], find)
        return self._window_length(hashes, length, find)

    def _window_length(self, hashes: Sequence[bytes], length: int, find: Find) -> int:
        """The longest length up to ``length`` before which every windowed cohort has the blocks it needs."""
        while (shorter := self._window_end(hashes, length, find)) < length:
            length = shorter
        return length

    def _run(self, cohort: int, hashes: Sequence[bytes], find: Find) -> int:
        """How many of the leading hashes a cohort has."""
        prefix = self.prefixes[cohort]
        for index, one in enumerate(hashes):
            if find(prefix + one) is None:
                return index
        return len(hashes)

    def _window_end(self, hashes: Sequence[bytes], length: int, find: Find) -> int:
        """``length`` if every windowed cohort has the blocks it needs before it, else the next shorter candidate."""
        for cohort, window_blocks in enumerate(self.window_blocks):
            if window_blocks is None:
                continue
            prefix = self.prefixes[cohort]
            for index in range(length - 1, max(length - window_blocks, 0) - 1, -1):
                if find(prefix + hashes[index]) is None:
                    return index
        return length

    def _cached(self, cohort: int, hashes: Sequence[bytes]) -> list[int]:
        window_blocks, width = self.window_blocks[cohort], self._cohorts[cohort].width
        behind = 0 if window_blocks is None else max(0, len(hashes) - window_blocks)
        return [NULL_BLOCK] * (behind * width) + self._find_all(self.prefixes[cohort], hashes[behind:], width)

    def _cached_cross(self, table: Table) -> tuple[list[int], ...]:
        """The media item's blocks, if every cross cohort has all of them."""
        cohorts = zip(self._cross_cohorts, self.cross_prefixes, strict=True)
        found = [(cohort.width, self._find_all(prefix, table.cross_hashes, cohort.width)) for cohort, prefix in cohorts]
        whole = all(len(blocks) == width * len(table.cross_hashes) for width, blocks in found)
        return tuple(blocks for _, blocks in found) if whole else ()

    def _find_all(self, prefix: bytes, hashes: Iterable[bytes], width: int) -> list[int]:
        """The blocks of a cohort for the hashes that it has."""
        find, bundle = self._pool.find, self._pool.bundle
        found = [block for one in hashes if (block := find(prefix + one)) is not None]
        return found if width == 1 else [one for block in found for one in bundle(block)]
