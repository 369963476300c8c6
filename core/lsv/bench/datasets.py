"""What a benchmark asks: random token ids of given lengths, or conversations from a ShareGPT-format file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec

from lsv.errors import ConfigError


class Sample(msgspec.Struct, frozen=True):
    """One request: token ids or a text, and how many tokens to generate."""

    prompt: tuple[int, ...] | str
    output_len: int


def random_samples(
    count: int, input_len: int, output_len: int, *, vocab: int, spread: float, seed: int
) -> list[Sample]:
    """Prompts of independent random ids; lengths are uniform within ±``spread`` of what was asked."""
    rng = random.Random(seed)

    def around(length: int) -> int:
        return max(1, round(length * rng.uniform(1 - spread, 1 + spread)))

    return [
        Sample(tuple(rng.randrange(10, vocab) for _ in range(around(input_len))), around(output_len))
        for _ in range(count)
    ]


def sharegpt_samples(path: str, count: int, output_len: int, *, seed: int) -> list[Sample]:
    """First human turns of a ShareGPT-format JSON file: a list of ``{"conversations": [{"from", "value"}, …]}``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        prompts = [entry["conversations"][0]["value"] for entry in data if entry.get("conversations")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ConfigError(f"{path} is not a ShareGPT-format JSON file: {cause}", param="dataset_path") from cause
    if not prompts:
        raise ConfigError(f"{path} holds no conversation", param="dataset_path")
    rng = random.Random(seed)
    rng.shuffle(prompts)
    return [Sample(prompts[index % len(prompts)], output_len) for index in range(count)]
