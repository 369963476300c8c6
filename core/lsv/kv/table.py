"""What one request holds of the cache: a block table per KV group and the hashes of its blocks."""

from __future__ import annotations

from lsv.kv.blocks import NULL_BLOCK
from lsv.kv.prefix import pack_extras
from lsv.request.request import Request


class Table:
    """The block tables of one request. It lives as long as the request and is empty while that waits."""

    __slots__ = (
        "allocated", "blocks", "capacity", "cross", "cross_hashes", "cross_pending", "cross_ready", "dropped", "hashes",
        "pending_until", "published", "request", "reservation", "sent",
    )  # fmt: skip

    def __init__(self, request: Request, groups: int, cross: int = 0) -> None:
        self.request = request
        self.blocks: list[list[int]] = [[] for _ in range(groups)]
        """``blocks[g][i]`` is the block of group g for the tokens from ``i * block_size`` on, or the null block.

        All groups' tables have the same length, and only grow until the request gives its blocks up.
        """
        self.capacity = 0
        """Tokens that ``blocks`` have room for."""
        self.sent = 0
        """How many entries of each of ``blocks`` the worker has been told of."""
        self.dropped = [0] * groups
        """By group, how many leading blocks were given back because they lie behind the window."""
        self.allocated = 0
        """Blocks held in all groups together."""
        self.reservation = 0
        """How many blocks the request can always hold; 0 for no reservation."""

        # The prefix cache

        self.hashes: list[bytes] = []
        """``hashes[i]`` names full block i; as many as were needed so far."""
        self.published = 0
        """Leading full blocks that other requests can find."""
        self.pending_until = 0
        """Full blocks from ``published`` up to this one are registered as pending."""

        # Cross-attention

        self.cross: list[list[int]] = [[] for _ in range(cross)]
        """The tables of the cross groups, which are numbered after the others: blocks for the media item."""
        self.cross_hashes: list[bytes] = []
        """Names of the blocks in each of ``cross``."""
        self.cross_ready = False
        """Whether the item's K and V are in ``cross``, or will be by the end of a step that is planned."""
        self.cross_pending: bytes | None = None
        """The hash registered as pending until other requests can find the item."""

    def extras(self, start: int, stop: int) -> bytes:
        """What the content of the block of tokens ``start … stop-1`` depends on besides its tokens."""
        media = [
            (item.hash, start - item.start)
            for item in self.request.media
            if item.cross or (item.start < stop and start < item.stop)
        ]
        return pack_extras(salt=self.request.salt, media=media)

    def clear(self) -> None:
        """Hold no blocks any more; the hashes stay true."""
        for blocks in (*self.blocks, *self.cross):
            blocks.clear()
        self.dropped = [0] * len(self.blocks)
        self.cross_ready = False
        self.cross_pending = None
        self.capacity = self.sent = self.allocated = self.reservation = 0
        self.published = self.pending_until = 0

    @property
    def reserved(self) -> int:
        """Blocks that are kept available for this request beside those it holds."""
        return max(0, self.reservation - self.allocated)

    def listed(self) -> list[tuple[int, int]]:
        """All blocks it holds, as (position in its table, block)."""
        tables = (*self.blocks, *self.cross)
        return [(place, block) for blocks in tables for place, block in enumerate(blocks) if block != NULL_BLOCK]
