"""Pairs of texts as models read them that judge both at once, such as rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers

from lsv.request.params import Side
from lsv_base.errors import BadRequest


def encode_pairs(
    backend: Any, firsts: Sequence[str], seconds: Sequence[str], keep: int | None = None, side: Side = "right"
) -> list[tuple[list[int], int]]:
    """See ``Tokenizer.encode_pairs``."""
    if not isinstance(backend, tokenizers.Tokenizer):
        raise BadRequest("this model's tokenizer, which is code of its own, can't join two texts", param="text_2")
    room = None if keep is None else keep - backend.num_special_tokens_to_add(True)
    if room is not None and room < 2:
        raise BadRequest(f"truncate_prompt_tokens={keep} leaves no room for two texts", param="truncate_prompt_tokens")
    heads = [_encode(backend, text) for text in firsts]
    found = []
    for index, text in enumerate(seconds):
        head, tail = heads[index if len(heads) > 1 else 0], _encode(backend, text)
        if room is not None and len(head) + len(tail) > room:
            of_head, of_tail = _shares(len(head), len(tail), room)
            head, tail = _cut(head, of_head, side), _cut(tail, of_tail, side)
        joined = backend.post_process(head, tail, True)
        found.append((joined.ids, joined.type_ids.index(1) if 1 in joined.type_ids else 0))
    return found


def _encode(backend: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise BadRequest(f"the text is not valid Unicode: {cause.reason} at character {cause.start}") from None
    (found,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return found


def _cut(encoding: tokenizers.Encoding, most: int, side: Side) -> tokenizers.Encoding:
    """A copy with at most ``most`` tokens, without those on the given side."""
    copy = tokenizers.Encoding.merge([encoding], growing_offsets=False)
    copy.truncate(most, direction=side)
    return copy


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each text keeps: the longer one loses first."""
    short = min(first, second)
    if 2 * short <= room:
        return (short, room - short) if first <= second else (room - short, short)
    half = room // 2
    return (half, room - half) if first <= second else (room - half, half)
