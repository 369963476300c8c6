"""The pool of cache blocks: which are free, which are shared by how many, and what content a block still caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from lsv.kv.lookup import Lookup

NULL_BLOCK = 0
"""Stands in block tables where a block is not needed (any more); never handed out."""


class BlockPool:
    """Blocks 1 … ``size``, each free (holds nothing), cached (unused, but its content can still be found) or in use.

    Blocks for the same tokens of several groups are taken, shared, cached and given back together, as a *bundle*, which
    is known by its first block: what is said of a block here is true of its bundle.

    A block whose content can be found has a ``key``. It keeps it while cached, until ``take`` evicts it to use the
    block for something else. Cached blocks are evicted in the order in which they became unused.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._cached_count = 0
        self._bundles: dict[int, list[int]] = {}  # all blocks of a bundle, by the first; not those of a single block
        self._references = [0] * (size + 1)
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self.lookup: Lookup | None = None
        """What is told of changes."""

    @property
    def available(self) -> int:
        """Blocks that ``take`` can hand out: the free and the cached ones."""
        return len(self._free) + self._cached_count

    def take(self, count: int, width: int = 1) -> list[int]:
        """``count`` bundles of ``width`` blocks, one after another, with one reference each.

        Free blocks go first, then the least recently used cached ones.
        """
        needed = count * width
        assert needed <= self.available, "more blocks are taken than are available"
        if not needed:
            return []
        while len(self._free) < needed:
            self._evict()
        taken = self._free[-needed:]
        del self._free[-needed:]
        taken.reverse()
        if width == 1:
            for block in taken:
                self._references[block] = 1
            return taken
        for first in range(0, needed, width):
            self._references[taken[first]] = 1
            self._bundles[taken[first]] = taken[first : first + width]
        return taken

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        self._cached_count -= self._release(block)
        if self.lookup is not None:
            self.lookup.note_evicted(block)

    def forget(self, key: bytes) -> None:
        """Nobody shall find this content any more; where it is not in use its block becomes free."""
        block = self._block_of.pop(key, None)
        if block is None:
            return
        del self._key_of[block]
        if self.lookup is not None:
            self.lookup.note_evicted(block)
        if block in self._cached:
            del self._cached[block]
            self._cached_count -= self._release(block)

    def _release(self, block: int) -> int:
        """The bundle's blocks become free; returns their number."""
        bundle = self._bundles.pop(block, None)
        if bundle is None:
            self._free.append(block)
            return 1
        self._free += reversed(bundle)
        return len(bundle)

    def _count_cached(self, block: int, change: int) -> None:
        """The bundle's last user has gone, or its first has come."""
        self._cached_count += change
        if self.lookup is not None:
            self.lookup.note_use(block, -change)

    def _width(self, block: int) -> int:
        bundle = self._bundles.get(block)
        return 1 if bundle is None else len(bundle)

    def bundle(self, block: int) -> list[int]:
        """All blocks of the bundle that begins with ``block``."""
        return self._bundles.get(block) or [block]

    def publish(self, block: int, key: bytes) -> None:
        """Let others find a full block. Where the same content is cached already, the block stays private."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key
            if self.lookup is not None:
                self.lookup.note_key(key)

    def find(self, key: bytes) -> int | None:
        """The block that holds this content."""
        return self._block_of.get(key)

    def ref(self, block: int) -> None:
        """Add a reference to a block that was found."""
        if not self._references[block]:
            del self._cached[block]
            self._count_cached(block, -self._width(block))
        self._references[block] += 1

    def unref(self, block: int) -> None:
        """Drop a reference; with the last one the block becomes cached, or free if nobody can find it."""
        references = self._references[block] = self._references[block] - 1
        assert references >= 0, f"block {block} was freed twice"
        if references:
            return
        if block in self._key_of:
            self._cached[block] = None
            self._count_cached(block, self._width(block))
        else:
            self._release(block)

    def is_cached(self, block: int) -> bool:
        """Whether nobody uses the block, though its content can be found."""
        return block in self._cached

    def clear_cache(self) -> None:
        """Forget all cached content; blocks in use stay in use."""
        for block in self._cached:
            self._release(block)
        self._cached.clear()
        self._cached_count = 0
        self._key_of.clear()
        self._block_of.clear()
        self.lookup = None

    def check(self, references: Iterable[int]) -> None:
        """Assert that ``references`` (each block once for each table that lists it) are exactly those counted."""
        held = list(references)
        counted = [0] * (self.size + 1)
        for block in held:
            counted[block] += 1
        assert counted == self._references, "reference counts do not add up"
        free, cached, used = set(self._free), self._members(self._cached), self._members(held)
        assert len(free) == len(self._free), "a free block is listed twice"
        assert len(cached) == self._cached_count, "cached blocks are miscounted"
        assert not free & cached, "a block is both free and cached"
        assert free | cached | used == set(range(1, self.size + 1)), "blocks are lost or invented"
        assert not used & (free | cached), "a block in use is listed as available"
        assert self._cached.keys() <= self._key_of.keys(), "a cached block holds no content"
        assert not free & self._key_of.keys(), "a free block holds content"
        assert not free & self._bundles.keys(), "a free block leads a bundle"
        assert {key: block for block, key in self._key_of.items()} == self._block_of, "the index is not one to one"

    def _members(self, leaders: Iterable[int]) -> set[int]:
        """All blocks of the bundles that begin with ``leaders``."""
        members = set(leaders)
        for block in self._bundles.keys() & members:
            members.update(self._bundles[block])
        return members
