"""The tower's first lessons, before it meets the language model: to name the aspects of what it is shown.

An item costs far less than a conversation about it, and the labels tell all of it at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_training.optimizer import MasterWeights, share_of_rate
from demo_training.question import Split
from demo_training.senses import clips, pictures, sounds
from demo_training.senses.conversations import KINDS, Items, draw
from demo_training.senses.tower import Tower
from lsv.request.media import Modality
from lsv_demo.senses.inputs import MERGED, PATCHES

ASPECTS: Mapping[Modality, tuple[int, ...]] = {
    "image": pictures.ASPECTS, "audio": sounds.ASPECTS, "video": clips.ASPECTS,
}  # fmt: skip
SHARES: Mapping[Modality, int] = {"image": 64, "audio": 24, "video": 32}
"""Items of each kind in a step."""


@dataclass(frozen=True)
class Lessons:
    """The course of the lessons."""

    steps: int
    seed: int = 0
    warm: int = 30
    rate: float = 0.02
    other: float = 0.003

    def scale(self, step: int) -> float:
        return share_of_rate(step, self.steps, warm=self.warm, falling=self.steps / 1.2)


class Namer(nn.Module):
    """A tower, and for each kind a linear layer over all its embeddings that tells all aspects."""

    def __init__(self, tower: Tower, hidden: int) -> None:
        super().__init__()
        self.tower = tower
        counts = {kind: PATCHES[kind] // MERGED[kind] for kind in KINDS}
        self.heads = nn.ModuleDict({kind: nn.Linear(counts[kind] * hidden, sum(ASPECTS[kind])) for kind in KINDS})
        for head in self.heads.values():
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, items: Items) -> tuple[Tensor, ...]:
        """Scores [items, classes] of each aspect."""
        made = items.embed(self.tower)
        head = self.heads[items.kind]
        flat = F.pad(made.flatten(1), (0, head.in_features - made[0].numel()))
        # so that a step of the head changes the scores of thousands of inputs no more than a layer's does its outputs
        return (head(flat).float() * (8 / head.in_features**0.5)).split(ASPECTS[items.kind], dim=-1)

    def loss(self, items: Items) -> Tensor:
        """Cross-entropy, summed over aspects and averaged over items."""
        losses = [
            F.cross_entropy(scores, wanted, ignore_index=-1, reduction="sum")
            for scores, wanted in zip(self(items), items.labels.unbind(1), strict=True)
        ]
        return torch.stack(losses).sum() / len(items.labels)

    @torch.inference_mode()
    def share_right(self, items: Items) -> float:
        """The share of items of which every aspect is named right."""
        named = torch.stack([scores.argmax(-1) for scores in self(items)], dim=1)
        return float(((named == items.labels) | (items.labels < 0)).all(1).float().mean())


def teach(tower: Tower, hidden: int, lessons: Lessons) -> None:
    """Teach a tower in bfloat16."""
    namer = Namer(tower, hidden).bfloat16()
    optimizer = MasterWeights(namer, lessons.rate, lessons.other)
    rng, started = Random(f"first sight {lessons.seed}"), time.monotonic()
    for step in range(lessons.steps):
        losses = {}
        for kind, count in SHARES.items():
            loss = namer.loss(Items.cut(kind, [draw(kind, "train", rng) for _ in range(count)]))
            loss.backward()
            losses[kind] = loss.item()
        optimizer.step(lessons.scale(step))
        if step % 20 == 0 or step + 1 == lessons.steps:
            told = "  ".join(f"{kind} {loss:.3f}" for kind, loss in losses.items())
            print(f"lesson {step:5}  {told}  {time.monotonic() - started:6.0f} s", flush=True)
        if (step + 1) % 100 == 0:
            print(_examine(namer), flush=True)


@torch.no_grad()
def set_level(tower: Tower, level: float) -> None:
    """Scale what the tower makes of each kind to a root mean square of ``level``."""
    rng = Random("level")
    for kind in KINDS:
        items = Items.cut(kind, [draw(kind, "train", rng) for _ in range(16)])
        made = items.embed(tower)[items.kept].float()
        merge = tower.merge[kind]
        for parameter in (merge.weight, merge.bias):
            parameter.mul_(level / made.pow(2).mean().sqrt())


def _examine(namer: Namer, split: Split = "test", count: int = 200) -> str:
    rng = Random("examine")
    items = [Items.cut(kind, [draw(kind, split, rng) for _ in range(count)]) for kind in KINDS]
    return "  ".join(f"{one.kind} {namer.share_right(one):.0%}" for one in items)
