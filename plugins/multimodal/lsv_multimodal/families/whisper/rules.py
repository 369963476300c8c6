"""What Whisper's answers keep to, as requests say it to the logits processor of ``whisper_timestamps``."""

from __future__ import annotations

import msgspec

NAME = "whisper"
"""What requests ask for the logits processor by."""


class Timestamps(msgspec.Struct, frozen=True, kw_only=True):
    """The timestamp tokens of a vocabulary, which ends with them.

    An answer begins with one. They never go back. One after text ends a passage, and is followed by the one that begins
    the next, the same or a later one, or by no text; two are never followed by a third. Where all of them together are
    likelier than each other token, one of them comes (Radford et al. 2022, and the code published with it).
    """

    first: int
    """The one of time 0; each id from there on is 20 ms later."""
    text_end: int
    """Ids below this are text; those from here to ``first`` are neither."""
    max_initial: int
    """How many tokens after ``first`` an answer may begin with."""


class WhisperRules(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a request."""

    never: tuple[int, ...] = ()
    """Tokens that no answer holds."""
    not_begin: tuple[int, ...] = ()
    """Tokens that no answer begins with."""
    timestamps: Timestamps | None = None
    """None where no timestamps are asked for; ``never`` then holds them."""
