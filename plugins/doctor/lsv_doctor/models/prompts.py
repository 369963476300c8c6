"""What a tiny checkpoint is asked: random tokens that are no special ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_FIRST, _LAST = 5, 250
"""The ids of prompts; special tokens lie around them."""
_LENGTHS = (1, 2, 7, 15, 16, 17, 33, 60)
_SHARED = 32
ENCODED = (128, 97, 5)
"""Tokens of the texts that encoders read, in turns."""


def make_prompts(*, encodes: bool) -> Iterator[Any]:
    """Ragged ones; every other begins with the same tokens. ``encodes`` gives each a text for an encoder."""
    shared = draw(_SHARED, 96)
    for number, length in enumerate(_LENGTHS):
        ids = [*(shared if number % 2 else ()), *draw(length, number)]
        if encodes:
            yield {
                "encoder_prompt": {"prompt_token_ids": draw(ENCODED[number % len(ENCODED)], 99)},
                "decoder_prompt": {"prompt_token_ids": ids},
            }
        else:
            yield {"prompt_token_ids": ids}


def draw(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(_FIRST, _LAST) for _ in range(count)]
