"""Media in a request's body, extracted before its JSON is parsed and put back afterwards.

Parsing megabytes of base64 into a string that nobody reads blocks all other answers for milliseconds; finding where it
ends does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from secrets import token_hex

from lsv.media.content_parts import ContentPart, InlinePart, InputAudio, MediaLink
from lsv_api.records.requests import Message

SHORTEST = 1 << 16
"""Bytes of base64 from which extracting them pays."""

_HEAD = re.compile(rb'"(?:url|(?:image|audio|video)_url)"\s*:\s*"data:[^"\\,]*;base64,|"data"\s*:\s*"')


def extract_payloads(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The body with a short name in place of each long payload, and the payloads by their names.

    A payload is a string's content, or the end of it: quotes inside of strings are escaped, so the next one ends it. A
    string with escapes stays where it is. Names are drawn anew for each body, so that nothing in it can be one.
    """
    if len(body) < SHORTEST:
        return body, {}
    pieces: list[bytes] = []
    payloads: dict[str, bytes] = {}
    mark, kept, place = token_hex(8), 0, 0
    while found := _HEAD.search(body, place):
        start, end = found.end(), body.find(b'"', found.end())
        place = max(start, end)
        if end - start < SHORTEST or body.find(b"\\", start, end) >= 0:
            continue
        name = f"@{mark}{len(payloads)}@"  # no base64
        payloads[name] = body[start:end]
        pieces += [body[kept:start], name.encode("ascii")]
        kept = end
    return b"".join([*pieces, body[kept:]]), payloads


def restore_payloads(messages: Iterable[Message], payloads: dict[str, bytes]) -> bool:
    """Give parts of messages their payloads. Returns whether all have been given: what looks like a part's payload may
    also stand where parsing would have left it as it is.
    """
    left = dict(payloads)
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        for index, part in enumerate(parts):
            if (payload := left.pop(_inline_text(part), None)) is not None:
                parts[index] = InlinePart(type=part.type, payload=payload)
    return not left


def _inline_text(part: ContentPart) -> str:
    """What a part holds in place of base64."""
    value = getattr(part, part.type, None) if part.type in part.__struct_fields__ else None
    if isinstance(value, InputAudio):
        return value.data
    url = value.url if isinstance(value, MediaLink) else value
    return url.rpartition(",")[2] if isinstance(url, str) and url.startswith("data:") else ""
