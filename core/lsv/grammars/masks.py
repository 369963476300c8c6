"""Masks of tokens that may follow: one bit a token in 32-bit words, lowest bit first. Functions work in place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

WORD = 32
"""Tokens in a word."""
ALL = 0xFFFFFFFF
"""A word in which all tokens are allowed."""

Mask = npt.NDArray[np.uint32]


def words_of(vocab_size: int) -> int:
    """Words in a mask."""
    return -(-vocab_size // WORD)


def view(row: memoryview) -> Mask:
    """The words of a row, sharing its memory."""
    return np.frombuffer(row, np.uint32)


def allows(mask: Mask, token: int) -> bool:
    return bool(mask[token // WORD] >> np.uint32(token % WORD) & 1)


def allow(mask: Mask, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // WORD] |= np.uint32(1 << token % WORD)


def allow_only(mask: Mask, tokens: Iterable[int]) -> None:
    mask[:] = 0
    allow(mask, tokens)


def forbid(mask: Mask, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // WORD] &= np.uint32(ALL ^ 1 << token % WORD)
