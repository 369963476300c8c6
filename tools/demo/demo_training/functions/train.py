"""Teaches the shipped model to call functions: ``python -m demo_training.functions.train``, after ``senses.train``.

Seeded. Only the language model learns; text, and conversations about what is shown, are rehearsed so that both stay.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.chat import system_turn
from demo_training.checkpoint import load_text
from demo_training.corpus import Rows
from demo_training.functions.conversations import cases, documents, rendered
from demo_training.functions.offered import offer
from demo_training.optimizer import MasterWeights, share_of_rate
from demo_training.questions import stream
from demo_training.senses.checkpoint import load_tower, save
from demo_training.senses.conversations import Batch, Row, collate, conversation, draw, pack
from demo_training.senses.conversations import opening as usual_opening
from demo_training.senses.learner import Learner
from demo_training.senses.pictures import Scenes
from demo_training.senses.tower import Tower
from demo_training.senses.train import PACKED, rehearsals
from demo_training.template import END_OF_TURN, turn_start
from demo_training.train import keep, resume, weighted_loss
from lsv.request.media import Modality
from lsv_demo import CHECKPOINT

KEPT = Path(tempfile.gettempdir()) / "lsv-demo-functions.pt"


@dataclass(frozen=True)
class Course:
    """Each step has ``rows`` of conversations with functions, of ``LENGTH`` tokens each, ``text_tokens`` of rehearsed
    text, and so many conversations about what is shown.

    The rate stays for the ``early`` share of the steps, then falls in a line to nothing.
    """

    steps: int
    early: float
    seed: int
    rows: int
    text_tokens: int
    shown: Mapping[Modality, int]
    rate: float = 0.008
    warm: int = 30
    check_every: int = 100

    def scale(self, step: int) -> float:
        return share_of_rate(step, self.steps, warm=self.warm, falling=self.steps * (1 - self.early))


COURSES = (
    Course(300, early=1.0, seed=0, rows=4, text_tokens=1024, shown={"image": 7, "audio": 1, "video": 1}),
    Course(100, early=1.0, seed=1, rows=3, text_tokens=2048, shown={"image": 5, "audio": 1, "video": 1}),
    Course(220, early=0.0, seed=2, rows=3, text_tokens=1536, shown={"image": 4, "audio": 1, "video": 1}, warm=8),
    Course(1352, early=0.1, seed=11, rows=3, text_tokens=3072, shown={"image": 6, "audio": 1, "video": 1}, rate=0.01),
    Course(313, early=0.0, seed=12, rows=3, text_tokens=4096, shown={"image": 6, "audio": 1, "video": 1}, rate=0.006),
)
"""Calls are learnt in the first three, at the cost of text and of what is shown. The long fourth has room for all,
at a rate that begins higher and falls all the way; the last has still more text.
"""
LENGTH = 512
"""Tokens of a row of conversations with functions."""


def batch(rows: Rows, count: int) -> tuple[Tensor, Tensor]:
    tokens, weights = rows.batch(count)
    return torch.from_numpy(tokens), torch.from_numpy(weights)


THOUGHTS: Mapping[Modality, str] = {
    "image": "I need to look at the image.", "audio": "I need to listen.", "video": "I need to watch the clip.",
}  # fmt: skip


def opening(rng: Random) -> str:
    """A system turn that sometimes offers functions, which never fit what is shown."""
    if rng.random() < 0.7:
        return usual_opening(rng)
    return rendered([*map(dict, system_turn(rng)), {"role": "user", "content": ""}], offer(rng).as_tools()).partition(
        turn_start("user")
    )[0]


def shown(tokenizer: Tokenizer, course: Course, first: int) -> Iterator[Batch]:
    """Endless batches of conversations about what is shown, as they were in the last course that taught them; some are
    one question that is thought about.
    """
    rng = Random(f"functions shown {course.seed} {first}")
    texts = stream("train", rng, late=True)
    kinds = [kind for kind, count in course.shown.items() for _ in range(count)]
    scenes = Scenes(most=4, single=0.2, crossed=0.4)
    while True:
        made = []
        for kind in kinds:
            row = conversation(tokenizer, kind, texts, rng, scenes, opening)
            if rng.random() < 0.12:
                row, item = Row(tokenizer), draw(kind, "train", rng, scenes)
                row.say(opening(rng), 0.0)
                row.ask(rng.choice(item.turns), item, rng.random() < 0.5, THOUGHTS[kind])
            made.append(row)
        yield collate(tokenizer, pack(made, PACKED))


def check(learner: Learner, tokenizer: Tokenizer, count: int) -> str:
    """Held-out cases whose every token is the likeliest one after the right ones before it, by kind."""
    marks: dict[str, list[bool]] = {}
    for case in cases(count, seed=1):
        row = Row(tokenizer)
        row.say(case.prompt, 0.0)
        row.say(case.said + END_OF_TURN, 1.0)
        marks.setdefault(case.kind, []).append(learner.marks(collate(tokenizer, [row]))[0][0])
    return "  ".join(f"{kind} {sum(found)}/{len(found)}" for kind, found in marks.items())


def train(
    course: Course,
    language: transformers.LlamaForCausalLM,
    tower: Tower,
    tokenizer: Tokenizer,
    folder: Path,
    kept: Path,
) -> None:
    """Train by ``course`` into ``folder``; a run that was interrupted goes on from ``kept``."""
    tower.requires_grad_(False)
    learner = Learner(language, tower, tokenizer)
    weights = MasterWeights(language, course.rate, course.rate / 5)
    first = resume(weights, course, kept)
    called = Rows(tokenizer, documents(Random(f"functions {course.seed} {first}")), LENGTH)
    known = rehearsals(tokenizer, 100 + 1000 * course.seed + first, course.text_tokens)
    seen = shown(tokenizer, course, first)
    started, mean = time.monotonic(), [0.0, 0.0, 0.0]
    for step in range(first, course.steps):
        found = [each.item() for each in losses(learner, batch(called, course.rows), next(known), next(seen))]
        weights.step(course.scale(step))
        mean = [0.95 * old + 0.05 * new if step > first else new for old, new in zip(mean, found, strict=True)]
        if step % 20 == 0:
            told = "  ".join(f"{name} {loss:.4f}" for name, loss in zip(TOLD, mean, strict=True))
            print(f"step {step:5}  {told}  {time.monotonic() - started:6.0f} s", flush=True)
        if (step + 1) % course.check_every == 0:
            print(check(learner, tokenizer, 80), flush=True)
            save(language, tower, tokenizer, folder)
            keep(weights, course, step + 1, kept)
    save(language, tower, tokenizer, folder)
    kept.unlink(missing_ok=True)


TOLD = ("functions", "text", "shown")


def losses(
    learner: Learner, called: tuple[Tensor, Tensor], known: tuple[Tensor, Tensor], seen: Batch
) -> Iterator[Tensor]:
    """The mean losses of the parts of a step; each is propagated before the next, which takes less memory."""
    learner.language.set_attn_implementation("sdpa")
    for tokens, weights in (called, known):
        yield propagated(weighted_loss(learner.language, tokens, weights))
    learner.language.set_attn_implementation("eager")
    yield propagated(learner.loss(seen)[0])


def propagated(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def main() -> None:
    """Train on from a checkpoint that knows text and media."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.functions.train", description=main.__doc__)
    parser.add_argument("--start", type=Path, default=CHECKPOINT, help="folder of the model to begin with")
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where an interrupted run keeps its state")
    parser.add_argument("--course", type=int, default=1, help="go on with this course from what is in --folder")
    options = parser.parse_args()
    start = options.start if options.course == 1 else options.folder
    language, tokenizer = load_text(start)
    tower = load_tower(start, language.config.hidden_size)
    for course in COURSES[options.course - 1 :]:
        train(course, language, tower, tokenizer, options.folder, options.kept)


if __name__ == "__main__":
    main()
