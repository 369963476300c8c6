"""Media in a request's body, extracted before its JSON is parsed and put back afterwards.

Parsing megabytes of base64 into a string that nobody reads blocks all other answers for milliseconds; finding where it
ends does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import msgspec

from lsv.media.content_parts import ContentPart, InlinePart, InputAudio, MediaLink
from lsv_api.records.pooling import Content
from lsv_api.records.requests import Message

SHORTEST = 1 << 16
"""Bytes of base64 from which extracting them pays."""

_KEY = re.compile(rb'"(?P<name>(?:(?:image|audio|video)_)?url|data)"\s*:\s*"\Z')
_KEY_BYTES = 256
_URL = re.compile(rb'data:(?:[^"\\,]|\\/)*;base64,')
_URL_BYTES = 256
_LIST = re.compile(rb'"images"\s*:\s*\[\s*(?:"[^"\\]*"\s*,\s*)*"\Z')
_LISTED = re.compile(rb'"\s*,\s*(?:"[^"\\]*"\s*,\s*)*"')
_LIST_BYTES = 4096
"""Bytes of short payloads that may stand before a long one in a list of them."""


def extract_payloads(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The body with a short name in place of each long payload, and the payloads by their names.

    A payload is a string's content, or the end of it: quotes inside of strings are escaped, so the next one ends it. A
    string with escapes other than of slashes stays where it is. Names are drawn anew for each body, so that nothing in
    it can be one.
    """
    if len(body) < SHORTEST:
        return body, {}
    pieces: list[bytes] = []
    payloads: dict[str, bytes] = {}
    mark, kept = token_hex(8), 0
    for start, end in _find_payloads(body):
        payload = body[start:end]
        if b"\\" in payload:
            payload = payload.replace(b"\\/", b"/")
            if b"\\" in payload:
                continue
        name = f"@{mark}{len(payloads)}@"  # no base64
        payloads[name] = payload
        pieces += [body[kept:start], name.encode("ascii")]
        kept = end
    return b"".join([*pieces, body[kept:]]), payloads


def _find_payloads(body: bytes) -> Iterator[tuple[int, int]]:
    """Where long payloads begin and end. A text of ``SHORTEST`` bytes has one of every so many, so that only the quotes
    around these are looked at, however many there are elsewhere.
    """
    place = listed = 0
    for middle in range(SHORTEST, len(body), SHORTEST):
        if middle < place:
            continue
        quote, end = body.rfind(b'"', place, middle), body.find(b'"', middle)
        if end < 0:
            return
        place = end
        start = _payload_start(body, quote) if quote >= 0 else end
        if start == len(body) and _is_listed(body, quote, listed):
            start, listed = quote + 1, end
        if end - start >= SHORTEST:
            yield start, end


def _payload_start(body: bytes, quote: int) -> int:
    """Where base64 begins in the text that this quote begins; the end of the body for other texts."""
    key = _KEY.search(body[max(0, quote - _KEY_BYTES) : quote + 1])
    if key is None:
        return len(body)
    if key["name"] == b"data":
        return quote + 1
    url = _URL.match(body, quote + 1, quote + 1 + _URL_BYTES)
    return len(body) if url is None else url.end()


def _is_listed(body: bytes, quote: int, listed: int) -> bool:
    """Whether a text is in a list of images, the last known of which ends at ``listed``."""
    near = max(0, quote - _LIST_BYTES)
    if listed > near and _LISTED.fullmatch(body, listed, quote + 1):
        return True
    return _LIST.search(body, near, quote + 1) is not None


def restore_payloads(body: msgspec.Struct, payloads: dict[str, bytes]) -> bool:
    """Give a body its payloads: parts of messages, and fields that records name in ``payloads``. Returns whether all
    have been given: what looks like a payload may also stand where parsing would have left it as it is.
    """
    left = dict(payloads)
    _restore_fields(body, left)
    return not left


def _restore_fields(record: msgspec.Struct, left: dict[str, bytes]) -> None:
    """Fill the fields that this record and those in it name in ``payloads``, and the parts of messages."""
    declared = getattr(record, "payloads", ())
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in declared:
            setattr(record, name, _restored(value, left))
            continue
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Message | Content):
                _restore_parts(item, left)
            elif isinstance(item, msgspec.Struct):
                _restore_fields(item, left)


def _restored(value: Any, left: dict[str, bytes]) -> Any:
    if isinstance(value, list):
        return [_restored(item, left) for item in value]
    return left.pop(value).decode("latin-1") if value in left else value


def _restore_parts(holder: Message | Content, left: dict[str, bytes]) -> None:
    parts = holder.content if isinstance(holder.content, list) else []
    for index, part in enumerate(parts):
        if not isinstance(part, str) and (payload := left.pop(_inline_text(part), None)) is not None:
            parts[index] = InlinePart(type=part.type, payload=payload)


def _inline_text(part: ContentPart) -> str:
    """What a part holds in place of base64."""
    value = getattr(part, part.type, None) if part.type in part.__struct_fields__ else None
    if isinstance(value, InputAudio):
        return value.data
    url = value.url if isinstance(value, MediaLink) else value
    return url.rpartition(",")[2] if isinstance(url, str) and url.startswith("data:") else ""
