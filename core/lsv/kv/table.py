"""What one request holds of the cache: a block table per cohort of KV groups and the hashes of its blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from lsv.kv.blocks import NULL_BLOCK
from lsv.kv.prefix import HASH_BYTES, block_hash, media_in, pack_extras
from lsv.kv.spec import Cohort
from lsv.kv.tiers.records import Load
from lsv.request.request import Request


class Table:
    """The block tables of one request. It lives as long as the request and is empty while that waits."""

    __slots__ = (
        "allocated", "blocks", "capacity", "checkpoints", "cohorts", "cross", "cross_cohorts", "cross_hashes",
        "cross_pending", "cross_ready", "draft_states", "dropped", "hashes", "kept_state", "loads", "pending_until",
        "published", "request", "reservation", "salt", "sent",
    )  # fmt: skip

    def __init__(self, request: Request, cohorts: Sequence[Cohort], cross: Sequence[Cohort] = ()) -> None:
        self.request = request
        salt = request.salt
        self.salt = salt if len(salt) <= HASH_BYTES else hashlib.sha256(salt).digest()
        """The request's salt, or its hash where that is shorter: it goes into the hash of every block."""
        self.cohorts = cohorts
        self.cross_cohorts = cross
        self.blocks: list[list[int]] = [[] for _ in cohorts]
        """``blocks[c][i * w + g]`` is the block of the g-th of the w groups of cohort c for the tokens from
        ``i * block_size`` on, or the null block.

        All cohorts' tables cover the same tokens, and only grow until the request gives its blocks up.
        """
        self.capacity = 0
        """Tokens that ``blocks`` have room for."""
        self.sent = 0
        """How many blocks of each group the worker has been told of."""
        self.dropped = [0] * len(cohorts)
        """By cohort, how many leading blocks of each group were given back because they lie behind the window."""
        self.allocated = 0
        """Blocks held in all groups together."""
        self.reservation = 0
        """How many blocks the request can always hold; 0 for no reservation."""

        # States behind drafts, see ``lsv.kv.draft_states``

        self.draft_states: list[int] = []
        """Blocks in no table that its row in flight leaves states in, laid out as ``blocks``; not ``allocated``."""
        self.kept_state: tuple[int, tuple[int, ...]] | None = None
        """The column of the state cohort's table whose blocks the worker does not know yet, and these."""

        # The prefix cache

        self.hashes: list[bytes] = []
        """``hashes[i]`` names full block i; as many as were needed so far."""
        self.published = 0
        """Leading full blocks that other requests can find."""
        self.pending_until = 0
        """Full blocks from ``published`` up to this one are registered as pending; where states are kept, only those
        in ``checkpoints``.
        """
        self.checkpoints: frozenset[int] = frozenset()
        """Full blocks behind which it will leave its state to others, because it ends there or parts from others."""

        self.loads: list[Load] = []
        """What is to be copied into its blocks before its first step."""

        # Cross-attention

        self.cross: list[list[int]] = [[] for _ in cross]
        """The tables of the cross cohorts, laid out as ``blocks``: blocks for the media item."""
        self.cross_hashes: list[bytes] = []
        """Names of the blocks of each group of ``cross``."""
        self.cross_ready = False
        """Whether the item's K and V are in ``cross``, or will be by the end of a step that is planned."""
        self.cross_pending: bytes | None = None
        """The hash registered as pending until other requests can find the item."""

    def hash_blocks(self, root: bytes, size: int, count: int) -> None:
        """Complete ``hashes`` up to ``count`` full blocks of ``size`` tokens; ``root`` starts the chain."""
        hashes, request = self.hashes, self.request
        begin = len(hashes) * size
        ids = request.ids(begin, count * size)
        parent = hashes[-1] if hashes else root
        alike = None if request.media else self.extras(begin, begin)
        for place in range(0, len(ids), size):
            start = begin + place
            extras = self.extras(start, start + size) if alike is None else alike
            parent = block_hash(parent, ids[place : place + size], extras)
            hashes.append(parent)

    def take_grown(self) -> list[tuple[Cohort, tuple[int, ...]]]:
        """The blocks that the worker has not been told of, by cohort; from now on it has."""
        columns = len(self.blocks[0]) // self.cohorts[0].width if self.blocks else 0
        sent, self.sent = self.sent, columns
        if sent == columns:
            return []
        each = zip(self.cohorts, self.blocks, strict=True)
        return [(cohort, tuple(blocks[sent * cohort.width :])) for cohort, blocks in each]

    def extras(self, start: int, stop: int) -> bytes:
        """What the content of the block of tokens ``start … stop-1`` depends on besides its tokens."""
        media, adapter = self.request.media, self.request.adapter
        placed = media_in(media, start, stop) if media else ()
        return pack_extras(salt=self.salt, media=placed, adapter=b"" if adapter is None else adapter.digest)

    def clear(self) -> None:
        """Hold no blocks any more; the hashes stay true."""
        for blocks in (*self.blocks, *self.cross):
            blocks.clear()
        self.dropped = [0] * len(self.blocks)
        self.loads = []
        self.kept_state = None
        self.cross_ready = False
        self.cross_pending = None
        self.capacity = self.sent = self.allocated = self.reservation = 0
        self.published = self.pending_until = 0
        self.checkpoints = frozenset()

    @property
    def reserved(self) -> int:
        """Blocks that are kept available for this request beside those it holds."""
        return max(0, self.reservation - self.allocated)

    def listed(self) -> list[tuple[int, int]]:
        """The first block of each bundle it holds, with its position in its table."""
        tables = (*zip(self.cohorts, self.blocks, strict=True), *zip(self.cross_cohorts, self.cross, strict=True))
        return [
            (place, block)
            for cohort, blocks in tables
            for place, block in enumerate(blocks[:: cohort.width])
            if block != NULL_BLOCK
        ]
