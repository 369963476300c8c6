"""A prompt as every part of lsv passes it on: token ids, and the media that have their places among them."""

from __future__ import annotations

import msgspec

from lsv.request.media import Media, Positions


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prompt, tokenised, with its media in place."""

    ids: tuple[int, ...]
    """Token ids."""

    text: str | None = None
    """The text these ids stand for; None where only ids were given, or where the prompt has been truncated since."""

    media: tuple[Media, ...] = ()
    """Images, audio and video, in the order of their places in the prompt."""

    positions: Positions | None = None
    """Positions of the tokens along several axes, for models that rotate by more than one."""

    encoder_text: str | None = None
    """The text of the item that an encoder reads, where it was given as text."""

    second: int = 0
    """Where the second of two texts begins, for models that tell them apart by token; 0 for a single text."""
