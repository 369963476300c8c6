"""What one request holds of the cache: a block table per KV group and the hashes of its blocks."""

from __future__ import annotations

from lsv.kv.blocks import NULL_BLOCK
from lsv.kv.prefix import pack_extras
from lsv.request.request import Request


class Table:
    """The block tables of one request; lives as long as the request, empty while it waits.

    ``blocks[g][i]`` is the block of group g for tokens ``i*block_size …``, or the null block. These tables
    have the same length, good for ``capacity`` tokens, and only grow until the request gives up its blocks, so that
    the worker appends what it has not seen (from ``sent`` on). ``cross`` has the tables of cross groups, whose numbers
    follow: blocks for the item it attends to, named by ``item``, from its entry on. Once ``crossed`` what is in them
    stands or is planned; until others can find it they wait for ``coming``. ``hashes[i]`` names full block i;
    ``published`` full blocks can be found by others, up to ``pending_until`` they are pending. ``dropped[g]`` leading
    blocks of a windowed group are behind its window. ``reservation`` is the number of blocks the request
    can always hold, 0 for no reservation; ``allocated`` how many it holds.
    """

    __slots__ = (
        "allocated", "blocks", "capacity", "coming", "cross", "crossed", "dropped", "hashes", "item", "pending_until",
        "published", "request", "reservation", "sent",
    )  # fmt: skip

    def __init__(self, request: Request, groups: int, cross: int = 0) -> None:
        self.request = request
        self.hashes: list[bytes] = []
        self.blocks: list[list[int]] = [[] for _ in range(groups)]
        self.cross: list[list[int]] = [[] for _ in range(cross)]
        self.item: list[bytes] = []
        self.dropped = [0] * groups
        self.clear()

    def extras(self, start: int, stop: int) -> bytes:
        """What the block of tokens ``start … stop-1`` depends on beside them."""
        shown = self.request.media
        media = [(one.hash, start - one.start) for one in shown if one.cross or (one.start < stop and start < one.stop)]
        return pack_extras(salt=self.request.salt, media=media)

    def clear(self) -> None:
        """Hold nothing; hashes stay true."""
        for blocks in (*self.blocks, *self.cross):
            blocks.clear()
        self.dropped = [0] * len(self.blocks)
        self.crossed = False
        self.coming: bytes | None = None
        self.capacity = self.sent = self.published = self.pending_until = 0
        self.reservation = self.allocated = 0

    @property
    def reserved(self) -> int:
        """Blocks that are kept available for this request beside those it holds."""
        return max(0, self.reservation - self.allocated)

    def listed(self) -> list[tuple[int, int]]:
        """All blocks it holds, as (position in its table, block)."""
        tables = (*self.blocks, *self.cross)
        return [(place, block) for blocks in tables for place, block in enumerate(blocks) if block != NULL_BLOCK]
