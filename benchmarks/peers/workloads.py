"""What every engine is asked: the same requests, of random token ids, greedy, ended by their length alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

SPECIAL_IDS = 400
"""Ids at the end of a vocabulary that prompts keep clear of."""
FIRST_ID = 256


@dataclass(frozen=True)
class Workload:
    """``requests`` prompts of ``shared`` common and ``own`` different tokens, ``output`` new tokens each."""

    name: str
    meaning: str
    requests: int
    shared: int
    own: int
    output: int
    figure: str
    clients: int = 0
    seen: bool = False
    """Whether the engine has seen the prompts before, so that a figure of decoding does not hold their prefill."""

    @property
    def prompt(self) -> int:
        return self.shared + self.own


PREFILL_LENGTHS = (256, 1024, 4096, 8192, 16384)
DECODE_ROWS = (1, 16, 32, 64, 128)

WORKLOADS = {
    one.name: one
    for one in (
        Workload("W1", "one stream", 1, 0, 128, 128, "decode_tps"),
        Workload("W2", "prefill", 1, 0, 1024, 1, "prompt_tps"),
        Workload("W3", "batch", 16, 0, 128, 128, "output_tps"),
        Workload("W4", "larger batch, longer prompts", 32, 0, 512, 64, "output_tps"),
        Workload("W5", "arriving together with a shared prefix", 16, 1024, 32, 32, "output_tps"),
        Workload("S1", "streaming HTTP clients", 32, 0, 128, 64, "output_tps", clients=16),
        Workload("W6", "long prompt", 1, 0, 12_000, 1, "prompt_tps"),
        Workload("W7", "one stream after a long context", 1, 0, 32_000, 64, "decode_tps", seen=True),
        *(
            Workload(f"P{count}", f"prefill of {count} tokens", 1, 0, count, 1, "prompt_tps")
            for count in PREFILL_LENGTHS
        ),
        *(
            Workload(f"D{rows}", f"decode of {rows} rows", rows, 0, 32, 64, "decode_tps", seen=True)
            for rows in DECODE_ROWS
        ),
    )
}

GROUPS = {
    "standard": ("W1", "W2", "W3", "W4", "W5", "S1"),
    "long": ("W6", "W7"),
    "prefill": tuple(f"P{count}" for count in PREFILL_LENGTHS),
    "decode": tuple(f"D{rows}" for rows in DECODE_ROWS),
}
"""``prefill`` and ``decode`` show how cost grows with the length of a prompt and the number of rows."""


@dataclass(frozen=True)
class Room:
    """What an engine is started with: tokens of a request, requests at once, GiB of KV cache."""

    context: int
    sequences: int
    kv_gib: int


def room_for(workloads: Iterable[Workload], kv_bytes: float) -> Room:
    """For the largest of the workloads, and no less than the standard ones need. ``kv_bytes`` is for one token."""
    needs = [(one.prompt + one.output, one.requests) for one in workloads]
    bytes_needed = max(tokens * requests for tokens, requests in needs) * kv_bytes
    return Room(
        context=max(2048, *(tokens for tokens, _ in needs)),
        sequences=max(32, *(requests for _, requests in needs)),
        kv_gib=max(1, math.ceil(1.1 * bytes_needed / 2**30)),
    )


def make_prompts(workload: Workload, vocabulary: int, seed: str) -> list[list[int]]:
    """Prompts that nobody has seen before, the same ones in every process."""
    chance = random.Random(f"{workload.name} {seed}")

    def draw(count: int) -> list[int]:
        return [chance.randrange(FIRST_ID, vocabulary - SPECIAL_IDS) for _ in range(count)]

    shared = draw(workload.shared)
    return [shared + draw(workload.own) for _ in range(workload.requests)]
