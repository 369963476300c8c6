"""Tokens that see one another, later ones included: no step has some of them without all that are left."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from lsv.request.media import Mutual, Span, spans_of
from lsv.request.request import Request


def mutual_spans(request: Request, mutual: Mutual) -> Iterable[Span]:
    """Where in a request's tokens those are that see one another."""
    return ((0, len(request.prompt)),) if mutual == "prompts" else spans_of(request.media)


def keep_whole(spans: Iterable[Span], start: int, count: int, most: int) -> int:
    """How many tokens from ``start`` on to compute where ``count`` were to be, so that no span is cut: fewer, or up to
    ``most`` where they begin in one, or none.
    """
    stop = start + count
    first, last = next(((first, last) for first, last in spans if first < stop < last), (stop, stop))
    if first > start:
        return first - start
    return last - start if last - start <= most else 0


def cache_salt(request: Request, mutual: Mutual) -> bytes:
    """What separates a request's blocks from others'. Where a prompt's tokens see one another, each of its blocks
    depends on the tokens behind it, so only those of the same prompt are alike.
    """
    if mutual != "prompts":
        return request.salt
    digest = hashlib.sha256(len(request.salt).to_bytes(4, "little") + request.salt)
    digest.update(struct.pack(f"<{len(request.prompt)}I", *request.prompt))
    for item in request.media:
        digest.update(item.hash + struct.pack("<q", item.start))
    return digest.digest()
