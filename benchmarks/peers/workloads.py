"""What every engine is asked: the same requests, of random token ids, greedy, ended by their length alone."""

from __future__ import annotations

import random
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

    @property
    def prompt(self) -> int:
        return self.shared + self.own


WORKLOADS = {
    one.name: one
    for one in (
        Workload("W1", "one stream", 1, 0, 128, 128, "decode_tps"),
        Workload("W2", "prefill", 1, 0, 1024, 1, "prompt_tps"),
        Workload("W3", "batch", 16, 0, 128, 128, "output_tps"),
        Workload("W4", "larger batch, longer prompts", 32, 0, 512, 64, "output_tps"),
        Workload("W5", "arriving together with a shared prefix", 16, 1024, 32, 32, "output_tps"),
        Workload("S1", "streaming HTTP clients", 32, 0, 128, 64, "output_tps", clients=16),
    )
}


def make_prompts(workload: Workload, vocabulary: int, seed: str) -> list[list[int]]:
    """Prompts that nobody has seen before, the same ones in every process."""
    chance = random.Random(f"{workload.name} {seed}")

    def draw(count: int) -> list[int]:
        return [chance.randrange(FIRST_ID, vocabulary - SPECIAL_IDS) for _ in range(count)]

    shared = draw(workload.shared)
    return [shared + draw(workload.own) for _ in range(workload.requests)]
