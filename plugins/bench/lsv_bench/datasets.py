"""What a benchmark asks: made-up token ids of given lengths, alone or behind prefixes they share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_FIRST_ID = 10
"""Ids below it are most often special tokens."""
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
    "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour",
    "game", "line", "end", "member", "law", "car", "city",
)  # fmt: skip


class Conversation(msgspec.Struct, frozen=True):
    """Messages for the chat endpoint, each with ``role`` and ``content``."""

    messages: tuple[Mapping[str, Any], ...]


Prompt = tuple[int, ...] | str | Conversation


class Sample(msgspec.Struct, frozen=True):
    """One request: token ids, a text or a conversation, and how many tokens to generate."""

    prompt: Prompt
    output_len: int


def random_samples(
    count: int, input_len: int, output_len: int, *, vocab: int, spread: float = 0.0, seed: int = 0
) -> list[Sample]:
    """Prompts of independent random ids below ``vocab``; lengths are uniform within ±``spread`` of what was asked."""
    rng = random.Random(seed)

    def around(length: int) -> int:
        return max(1, round(length * rng.uniform(1 - spread, 1 + spread)))

    return [Sample(_ids(rng, around(input_len), vocab), around(output_len)) for _ in range(count)]


def prefix_samples(
    count: int, prefix_len: int, suffix_len: int, prefixes: int, output_len: int, *, vocab: int, seed: int = 0
) -> list[Sample]:
    """Prompts that begin with one of ``prefixes`` prefixes, each used equally often, in a random order."""
    rng = random.Random(seed)
    shared = [_ids(rng, prefix_len, vocab) for _ in range(prefixes)]
    samples = [Sample(shared[index % prefixes] + _ids(rng, suffix_len, vocab), output_len) for index in range(count)]
    rng.shuffle(samples)
    return samples


def spelled(samples: Sequence[Sample]) -> list[Sample]:
    """The same samples with an English word for each token id, for endpoints that take text only."""
    return [
        Sample(" ".join(_WORDS[token % len(_WORDS)] for token in sample.prompt), sample.output_len)
        if isinstance(sample.prompt, tuple)
        else sample
        for sample in samples
    ]


def _ids(rng: random.Random, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_FIRST_ID, vocab) for _ in range(length))
