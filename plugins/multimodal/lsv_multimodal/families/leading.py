"""Prompts of families whose one image comes first."""

from __future__ import annotations

from collections.abc import Sequence

from lsv_base.errors import BadRequest


def text_behind(ids: Sequence[int], image: int, items: int) -> list[int]:
    """The tokens of a prompt without its placeholder ``image``, of which it may have one.

    Raises ``BadRequest`` for more images.
    """
    text = [token for token in ids if token != image]
    images = max(items, len(ids) - len(text))
    if images > 1:
        raise BadRequest(f"this model takes one image a prompt, got {images}", param="messages")
    return text
