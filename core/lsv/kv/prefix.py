"""Names of block contents, the same in every process and on every machine: a chain of sha256 hashes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from lsv.request.media import Media

CHAIN_FORMAT = b"lsv-kv-1"
"""Version of the chain and of the block content it names; to be changed with either."""


HASH_BYTES = 32


def root_hash(*, weights: str, quantizer: str | None, kv_dtype: str, block_size: int) -> bytes:
    """Where all chains of an engine start (32 bytes): blocks are only the same if all of this is."""
    parts = (CHAIN_FORMAT, weights.encode(), (quantizer or "").encode(), kv_dtype.encode(), b"%d" % block_size)
    return hashlib.sha256(pack(parts)).digest()


def pack(parts: Iterable[bytes]) -> bytes:
    """Byte strings in a row, each after its length as u32-LE, so that no two lists give the same bytes."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def block_hash(parent: bytes, ids: Sequence[int], extras: bytes) -> bytes:
    """sha256(parent ‖ ids as u32-LE ‖ extras): names a full block together with everything before it."""
    return hashlib.sha256(parent + _packer(len(ids))(*ids) + extras).digest()


@cache
def _packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}I").pack


def cross_hashes(root: bytes, media: bytes, blocks: int, *, salt: bytes) -> list[bytes]:
    """Names of the blocks that hold the cross-attention KV of a media item, which depends on the item alone."""
    return [block_hash(root, (), pack_extras(salt=salt, media=[(media, index)])) for index in range(blocks)]


def media_in(media: Iterable[Media], start: int, stop: int) -> list[tuple[bytes, int]]:
    """The items that the block of tokens ``start … stop-1`` depends on, as ``pack_extras`` takes them."""
    return [
        (item.hash, start - item.start) for item in media if item.start < stop and (item.cross or start < item.stop)
    ]


def pack_extras(*, salt: bytes, media: Sequence[tuple[bytes, int]] = (), adapter: bytes = b"") -> bytes:
    """What a block's content depends on besides its tokens, as name and value of whatever is given.

    ``media`` are the hashes of the items in the block, each with the place in the item at which the block begins. An
    item that tokens attend to is in all blocks from the first of them on. ``adapter`` is the hash of one that the model
    went through.
    """
    extras = pack((b"salt", salt)) if salt else b""
    if adapter:
        extras += pack((b"adapter", adapter))
    return extras + b"".join(pack((b"media", hash, struct.pack("<q", place))) for hash, place in media)
