"""How long a step takes, by what is in it: a function with a few measured numbers."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

Table = tuple[tuple[int, float], ...]
"""Seconds by a number, in rising order; between them, and beyond the last two, they lie on straight lines."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds. A step in which some sequences decode takes what so many were measured to take; with tokens of prompts
    in it, as much more as so many more tokens take. In addition there is ``context`` for each cached token that a
    decoding sequence attends to, and ``pair`` for each token of a prompt and token before its chunk.
    """

    decode: Table
    """By sequences."""

    tokens: Table
    """By tokens of a prompt that is alone."""

    context: float = 0.0
    pair: float = 0.0
    latency: float = 0.0
    """Between a client and a step: on the way there and back."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_tokens: int = 1 << 30
    block_size: int = 16
    load: float = 60.0
    """From the start of an engine until it is ready."""

    origin: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was measured, where and when."""

    def seconds(self, rows: int, chunk: int) -> float:
        """Of a step with so many sequences that decode and tokens of prompts, of which there is at least one."""
        if not rows:
            return _look_up(self.tokens, chunk)
        more = _look_up(self.tokens, rows + chunk) - _look_up(self.tokens, rows) if chunk else 0.0
        return _look_up(self.decode, rows) + more

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load_from(cls, path: Path) -> StepTimes:
        found = json.loads(path.read_text(encoding="utf-8"))
        tables = {name: tuple(map(tuple, found[name])) for name in ("decode", "tokens")}
        return cls(**{**found, **tables})


def _look_up(table: Table, number: int) -> float:
    if len(table) == 1:
        return table[0][1]
    place = min(max(bisect_right(table, (number, inf)), 1), len(table) - 1)
    (low, before), (high, after) = table[place - 1 : place + 1]
    return max(0.0, before + (after - before) * (number - low) / (high - low))
