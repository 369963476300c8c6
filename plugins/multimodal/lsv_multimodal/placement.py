"""Placement of media in a prompt: each placeholder replaced by the tokens that stand for its item."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from lsv.media.items import Prepared
from lsv.media.processor import Completing, Marking, Placement
from lsv.request.media import Media, Modality
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest


def marks_of(placement: Placement) -> Mapping[Modality, str]:
    """What stands for items in texts; empty for a family whose templates write placeholders."""
    return placement.marks if isinstance(placement, Marking) else {}


def spell(text: str, placement: Placement) -> str:
    """A prompt's text with placeholders for its marks."""
    return placement.spell(text) if isinstance(placement, Marking) else text


def place(ids: Sequence[int], items: Sequence[Prepared], placement: Placement) -> Prompt:
    """The prompt with its items in place. Those of a modality keep their order, however a template mixes modalities.

    Raises ``BadRequest`` where placeholders and items do not match one to one.
    """
    if items and isinstance(placement, Completing):
        ids = placement.complete(ids, len(items))
    modalities = {token: modality for modality, token in placement.placeholders.items()}
    expanded: list[int] = []
    media = [_media(item, 0) for item in items if _is_beside(item)]
    ordered = iter(_in_order(ids, [item for item in items if not _is_beside(item)], modalities))
    for token in ids:
        if token not in modalities:
            expanded.append(token)
            continue
        item = next(ordered, None)
        if item is None or item.modality != modalities[token]:
            what = "nothing" if item is None else f"an item of kind {item.modality}"
            raise _mismatch(f"the prompt has a place for an item of kind {modalities[token]} where there is {what}")
        for number, part in enumerate(item.processed.parts):
            media.append(_media(item, len(expanded) + part.start, number))
            expanded += part.tokens
    if left := sum(1 for _ in ordered):
        raise _mismatch(f"{left} of {len(items)} items have no place in the prompt")
    return Prompt(ids=tuple(expanded), media=tuple(media), positions=placement.positions(expanded, media))


def _in_order(ids: Sequence[int], items: Sequence[Prepared], modalities: Mapping[int, Modality]) -> list[Prepared]:
    """The items by their placeholders' order; those that have none come last."""
    waiting: dict[Modality, Iterator[Prepared]] = {
        modality: iter([item for item in items if item.modality == modality]) for modality in set(modalities.values())
    }
    placeholders = (modalities[token] for token in ids if token in modalities)
    found = [item for modality in placeholders if (item := next(waiting[modality], None)) is not None]
    left = [item for modality in waiting.values() for item in modality]
    return [*found, *left, *(item for item in items if item.modality not in waiting)]


def _media(item: Prepared, start: int, number: int = 0) -> Media:
    """A part of an item; those after the first have names of their own."""
    part = item.processed.parts[number]
    name = hashlib.sha256(item.hash + number.to_bytes(4, "little")).digest() if number else item.hash
    return Media(name, item.modality, start, part.count, part.inputs, cross=part.cross)


def _is_beside(item: Prepared) -> bool:
    """Whether it has no place in the prompt."""
    return item.processed.cross and not item.processed.tokens


def _mismatch(what: str) -> BadRequest:
    return BadRequest(f"the media do not fit the prompt: {what}", param="messages")
