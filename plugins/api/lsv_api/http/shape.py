"""The shape of JSON, found before it is parsed: nesting, and how much it holds.

A few bytes of JSON can become an object of the interpreter each, and parsing does not let go of the interpreter's lock.
Counting bytes is a hundred times faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from lsv_api.limits import Limits
from lsv_base.errors import BadRequest

SLICE = 1 << 19
"""Bytes that are looked through without letting go of the interpreter's lock, where that takes long."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_LIST = bytes.maketrans(b"{}", b"[]")


def check_shape(data: bytes, limits: Limits) -> None:
    """Raises ``BadRequest`` for JSON that is nested too deeply or holds too much; its faults are left to the parser."""
    if _is_small(data, limits):
        return
    bare = _without_texts(data, limits)
    if _count(bare, b",") > limits.values:
        raise BadRequest(f"The body has too many values; the limit is {limits.values}")
    brackets = bare.translate(_AS_LIST, _NO_BRACKETS)
    if _count(brackets, b"[") > limits.lists:
        raise BadRequest(f"The body has too many lists and objects; the limit is {limits.lists}")
    for _ in range(limits.nesting):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets and brackets.count(b"[") == brackets.count(b"]"):
        raise BadRequest(f"The body is nested too deeply; the limit is {limits.nesting} levels")


def _is_small(data: bytes, limits: Limits) -> bool:
    """Whether there are few enough of all marks, even if none of them were in a text."""
    return (
        _count(data, b"[{") <= min(limits.nesting, limits.lists)
        and _count(data, b",") <= limits.values
        and _count(data, b'"') <= 2 * limits.texts
    )


def _without_texts(data: bytes, limits: Limits) -> bytes:
    """What stands between the texts."""
    if b"\\" in data:  # then every quote that is left begins or ends a text
        data = b"".join(piece.replace(b"\\\\", b"").replace(b'\\"', b"") for piece in _slices(data))
    if _count(data, b'"') > 2 * limits.texts:
        raise BadRequest(f"The body has too many strings; the limit is {limits.texts}, including names of fields")
    return b"".join(data.split(b'"')[::2])


def _slices(data: bytes) -> Iterator[bytes]:
    """Pieces of a body, one after the other so that other threads may go on between; none begins inside an escape."""
    start = 0
    while start < len(data):
        end = start + SLICE
        while data[end - 1 : end] == b"\\":
            end += 1
        yield data[start:end]
        start = end


def _count(data: bytes, marks: bytes) -> int:
    """How many of these bytes there are; ``bytes.count`` is slow where there are many."""
    return len(data) - len(data.translate(None, marks))
