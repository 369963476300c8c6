"""How much one request may ask for: bounds that are checked before any work is done for it."""

from __future__ import annotations

import msgspec

from lsv.request.params import MAX_BAD_WORDS, MAX_N, MAX_STOP_STRINGS


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of each that a request may have."""

    body_bytes: int = 32 << 20
    """Bytes of a body that may bring media."""

    text_bytes: int = 8 << 20
    """Bytes of what is left of a body without its media, and of a body that can't bring any."""

    nesting: int = 64
    """Lists and objects around a value."""

    texts: int = 1 << 17
    """Texts in a body, names of fields among them."""

    lists: int = 1 << 15
    """Lists and objects in a body."""

    values: int = 1 << 20
    """Numbers and other values in a body, by the commas between them."""

    uncut: int = 1 << 20
    """Characters of a text that need not fit the context, if that is not longer: it is tokenised as a whole."""

    unknown_fields: int = 64
    """Fields that no request has."""

    messages: int = 4096
    """Messages of a conversation."""

    tools: int = 512
    """Tools that an answer may call."""

    prompts: int = 1024
    """Prompts of a completion, or texts to embed."""

    n: int = MAX_N
    """Answers to a prompt, or candidates for ``best_of``."""

    candidates: int = 1024
    """Prompts times the answers to each: as many places are needed in the queue."""

    token_ids: int = 1 << 20
    """Token ids in the lists of a request's parameters, times its candidates, each of which takes them along."""

    stop_strings: int = MAX_STOP_STRINGS
    """Stop strings."""

    bad_words: int = MAX_BAD_WORDS
    """Bad words."""
