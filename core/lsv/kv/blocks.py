"""The pool of cache blocks: who is free, who is shared by how many, and which cached content a block still holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0
"""Stands in block tables where a block is not needed (any more); never handed out."""


class BlockPool:
    """Blocks 1 … ``size``, each blank (free, holds nothing), idle (free, holds cached content) or in use.

    A block with content has a ``key``; it stays findable while idle, until ``take`` needs it for something else.
    Idle blocks go in the order in which they became idle.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._blank = list(range(size, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * (size + 1)
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that ``take`` can hand out."""
        return len(self._blank) + len(self._idle)

    def take(self, count: int) -> list[int]:
        """``count`` blocks with one reference each; blank ones first, then the idle ones of longest standing."""
        assert count <= self.free, "take more blocks than are free"
        taken = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        return block

    def publish(self, block: int, key: bytes) -> None:
        """Make a full block findable. Where the content is cached already, the block stays private."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, key: bytes) -> int | None:
        """The block that holds this content."""
        return self._block_of.get(key)

    def share(self, block: int) -> None:
        """One more reference to a block that was found."""
        if not self._references[block]:
            del self._idle[block]
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """One reference less; the last one frees the block."""
        references = self._references[block] = self._references[block] - 1
        assert references >= 0, f"block {block} was freed twice"
        if references:
            return
        if block in self._key_of:
            self._idle[block] = None
        else:
            self._blank.append(block)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def forget(self) -> None:
        """Forget all cached content; blocks in use stay in use."""
        self._blank.extend(self._idle)
        self._idle.clear()
        self._key_of.clear()
        self._block_of.clear()

    def check(self, references: Iterable[int]) -> None:
        """Assert that ``references`` (each block once for each table that lists it) are exactly what is held."""
        counted = [0] * (self.size + 1)
        for block in references:
            counted[block] += 1
        assert counted == self._references, "reference counts do not sum up"
        blank, idle = set(self._blank), set(self._idle)
        assert len(blank) == len(self._blank), "a blank block is listed twice"
        assert not blank & idle, "a block is blank and idle"
        used = {block for block, count in enumerate(counted) if count}
        assert blank | idle | used == set(range(1, self.size + 1)), "blocks are lost or invented"
        assert not used & (blank | idle), "a block in use is free"
        assert idle <= self._key_of.keys(), "an idle block holds nothing"
        assert not blank & self._key_of.keys(), "a blank block holds content"
        assert {key: block for block, key in self._key_of.items()} == self._block_of, "the index is not one to one"
