"""Conversations about what is shown, as rows of tokens with places for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.chat import system_turn
from demo_training.corpus import ASKED
from demo_training.question import Question, Split
from demo_training.senses.asked import Shown, Turn
from demo_training.senses.clips import clip
from demo_training.senses.pictures import AMONG_SEVERAL, SCENES, Scenes, picture
from demo_training.senses.sounds import sound
from demo_training.senses.tower import Tower
from demo_training.template import END_OF_TEXT, END_OF_TURN, MEDIA, THINK, THOUGHT, turn_start
from lsv.request.media import Modality
from lsv_demo.senses.inputs import FRAMES, HOPS, MERGED, PATCHES, RATE, SIDE, cut

HARD = {"position": 3, AMONG_SEVERAL: 12, "count": 3}
"""How much more often than others a skill is asked for."""
KINDS: tuple[Modality, ...] = ("image", "audio", "video")


def draw(kind: Modality, split: Split, rng: Random, scenes: Scenes = SCENES) -> Shown:
    """One item of ``split`` with what is asked about it, of the size that the tower takes."""
    while True:
        if kind == "image":
            shown = picture(rng, SIDE, scenes=scenes) if rng.random() < 0.8 else _oblong(rng, scenes)
        elif kind == "audio":
            shown = sound(rng, RATE)
        else:
            shown = clip(rng, SIDE, rng.choice((FRAMES, FRAMES, 6, 9)))
        if shown.split == split:
            return shown


def _oblong(rng: Random, scenes: Scenes) -> Shown:
    longer, shorter = SIDE, rng.randint(SIDE // 2, SIDE)
    return picture(rng, shorter, longer, scenes) if rng.random() < 0.7 else picture(rng, longer, shorter, scenes)


@dataclass
class Row:
    """One conversation: tokens with their weights in the loss, and what the tower takes of its items."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    items: list[tuple[Shown, np.ndarray]] = field(default_factory=list)

    def say(self, text: str, weight: float) -> None:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.ids += ids
        self.weights += [weight] * len(ids)

    def show(self, shown: Shown) -> None:
        _, item, count = cut(shown.content)
        self.ids += [self.tokenizer.token_to_id(MEDIA[shown.modality])] * count
        self.weights += [0.0] * count
        self.items.append((shown, item))

    def ask(self, turn: Turn, shown: Shown | None, first: bool, thought: str = "") -> None:
        """A user's turn, with something shown before or behind its text, and its answer, with any ``thought`` first."""
        self.say(turn_start("user"), 0.0)
        if shown is not None and first:
            self.show(shown)
        self.say(turn.ask, ASKED / 2)
        if shown is not None and not first:
            self.show(shown)
        self.say(END_OF_TURN, 0.0)
        self.say("\n" + turn_start("assistant") + (THINK if thought else ""), 0.0)
        self.say((thought + THOUGHT if thought else "") + turn.answer + END_OF_TURN, 1.0)
        self.say("\n", 0.0)


def _choose(turns: Sequence[Turn], count: int, rng: Random) -> list[Turn]:
    """Some of the turns, those that take longest to learn more often."""
    keys = [rng.random() ** (1 / HARD.get(turn.skill, 1)) for turn in turns]
    return [turn for _, turn in sorted(zip(keys, turns, strict=True), key=lambda pair: -pair[0])[:count]]


def opening(rng: Random) -> str:
    """A system turn in the template's form, or nothing."""
    messages = system_turn(rng) if rng.random() < 0.5 else []
    return "".join(turn_start(message["role"]) + message["content"] + END_OF_TURN + "\n" for message in messages)


def conversation(
    tokenizer: Tokenizer,
    kind: Modality,
    texts: Iterator[Question],
    rng: Random,
    scenes: Scenes = SCENES,
    opening: Callable[[Random], str] = opening,
) -> Row:
    """One or two items of a kind, each with several questions, now and then one about something else."""
    row = Row(tokenizer)
    row.say(opening(rng), 0.0)
    for _ in range(1 if rng.random() < 0.92 else 2):
        shown = draw(kind, "train", rng, scenes)
        turns = _choose(shown.turns, rng.choice((3, 4, 5)), rng)
        for index, turn in enumerate(turns):
            row.ask(turn, shown if index == 0 else None, first=rng.random() < 0.5)
            if rng.random() < 0.04:
                question = next(texts)
                if len(question.messages) == 1:
                    aside = Turn(question.skill, question.messages[0]["content"], question.answer)
                    row.ask(aside, None, first=False)
    return row


@dataclass(frozen=True)
class Items:
    """Things of one kind, filled up to the longest: what the tower takes of them [items, ...], which of their patches
    are there, bool [items, patches], and their labels, int64 [items, aspects].
    """

    kind: Modality
    shown: Tensor
    there: Tensor
    labels: Tensor

    @classmethod
    def of(cls, kind: Modality, items: Sequence[tuple[Shown, np.ndarray]]) -> Items:
        shown = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(item) for _, item in items], batch_first=True)
        labels = torch.tensor([one.labels for one, _ in items])
        there = torch.ones(len(items), PATCHES[kind], dtype=torch.bool)
        if kind == "audio":
            lengths = torch.tensor([len(item) // HOPS for _, item in items])
            there = torch.arange(shown.shape[1] // HOPS) < lengths[:, None]
        return cls(kind, shown, there, labels)

    @classmethod
    def cut(cls, kind: Modality, shown: Sequence[Shown]) -> Items:
        return cls.of(kind, [(one, cut(one.content)[1]) for one in shown])

    def embed(self, tower: Tower) -> Tensor:
        """[items, embeddings, hidden]; those of patches that are not there are nothing."""
        mask = None if bool(self.there.all()) else self.there[:, None, None, :]
        return tower(self.kind, self.shown, mask) * self.kept[..., None]

    @property
    def kept(self) -> Tensor:
        """Which embeddings are there, bool [items, embeddings]."""
        return self.there[:, :: MERGED[self.kind]]


@dataclass(frozen=True)
class Batch:
    """Rows of unlike length, filled up at their ends.

    ids int64 and weights float32 [rows, length]; ``items`` of a kind in the order of their places.
    """

    ids: Tensor
    weights: Tensor
    items: dict[Modality, Items]


def pack(rows: Sequence[Row], length: int) -> list[Row]:
    """Conversations one behind the other in fewer rows, of at most ``length`` tokens where they allow."""
    packed: list[Row] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        into = next((one for one in packed if len(one.ids) + len(row.ids) < length), None)
        if into is None:
            packed.append(row)
            continue
        into.say(END_OF_TEXT, 0.0)
        into.ids += row.ids
        into.weights += row.weights
        into.items += row.items
    return packed


def collate(tokenizer: Tokenizer, rows: Sequence[Row]) -> Batch:
    length = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), tokenizer.token_to_id(END_OF_TEXT))
    weights = torch.zeros(len(rows), length)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        weights[place, : len(row.ids)] = torch.tensor(row.weights)
    found = {kind: [item for row in rows for item in row.items if item[0].modality == kind] for kind in KINDS}
    return Batch(ids, weights, {kind: Items.of(kind, items) for kind, items in found.items() if items})
