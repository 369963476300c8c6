"""The pool of cache blocks: which are free, which are shared by how many, and what content a block still caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0
"""Stands in block tables where a block is not needed (any more); never handed out."""


class BlockPool:
    """Blocks 1 … ``size``, each free (holds nothing), cached (unused, but its content can still be found) or in use.

    A block whose content can be found has a ``key``. It keeps it while cached, until ``take`` evicts it to use the
    block for something else. Cached blocks are evicted in the order in which they became unused.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * (size + 1)
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks that ``take`` can hand out: the free and the cached ones."""
        return len(self._free) + len(self._cached)

    def take(self, count: int) -> list[int]:
        """``count`` blocks with one reference each; free ones first, then the least recently used cached ones."""
        assert count <= self.available, "more blocks are taken than are available"
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        return block

    def publish(self, block: int, key: bytes) -> None:
        """Let others find a full block. Where the same content is cached already, the block stays private."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, key: bytes) -> int | None:
        """The block that holds this content."""
        return self._block_of.get(key)

    def ref(self, block: int) -> None:
        """Add a reference to a block that was found."""
        if not self._references[block]:
            del self._cached[block]
        self._references[block] += 1

    def unref(self, block: int) -> None:
        """Drop a reference; with the last one the block becomes cached, or free if nobody can find it."""
        references = self._references[block] = self._references[block] - 1
        assert references >= 0, f"block {block} was freed twice"
        if references:
            return
        if block in self._key_of:
            self._cached[block] = None
        else:
            self._free.append(block)

    def is_cached(self, block: int) -> bool:
        """Whether nobody uses the block, though its content can be found."""
        return block in self._cached

    def clear_cache(self) -> None:
        """Forget all cached content; blocks in use stay in use."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._key_of.clear()
        self._block_of.clear()

    def check(self, references: Iterable[int]) -> None:
        """Assert that ``references`` (each block once for each table that lists it) are exactly those counted."""
        counted = [0] * (self.size + 1)
        for block in references:
            counted[block] += 1
        assert counted == self._references, "reference counts do not add up"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a free block is listed twice"
        assert not free & cached, "a block is both free and cached"
        used = {block for block, count in enumerate(counted) if count}
        assert free | cached | used == set(range(1, self.size + 1)), "blocks are lost or invented"
        assert not used & (free | cached), "a block in use is listed as available"
        assert cached <= self._key_of.keys(), "a cached block holds no content"
        assert not free & self._key_of.keys(), "a free block holds content"
        assert {key: block for block, key in self._key_of.items()} == self._block_of, "the index is not one to one"
