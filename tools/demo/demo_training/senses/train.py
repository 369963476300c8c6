"""Teaches the text model to see and hear: ``python -m demo_training.senses.train``, after ``demo_training.train``.

Seeded. The tower learns from nothing, the language model along with it, and the text it knows is rehearsed so that it
stays.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.checkpoint import load_text
from demo_training.optimizer import MasterWeights, share_of_rate
from demo_training.questions import stream
from demo_training.senses.checkpoint import load_tower, save
from demo_training.senses.conversations import Batch, collate, conversation, pack
from demo_training.senses.evaluate import check
from demo_training.senses.first_sight import Lessons, set_level, teach
from demo_training.senses.learner import Learner
from demo_training.senses.pictures import SCENES, Scenes
from demo_training.senses.tower import Tower, first_weights
from demo_training.train import LENGTHS, rows_by_length, weighted_loss
from lsv.request.media import Modality
from lsv_demo import CHECKPOINT

PACKED = 512
"""Tokens of a row of conversations, one behind the other."""
KEPT = Path(tempfile.gettempdir()) / "lsv-demo-tower.pt"


@dataclass(frozen=True)
class Course:
    """A part of the training in which both learn; ``shares`` are the conversations of each kind in a step, beside
    ``text_tokens`` of text that is rehearsed, whose loss has the weight ``rehearsed``; ``fields`` is the weight of what
    single embeddings tell of a picture's fields.

    The rate stays for the ``early`` share of the steps, then falls in a line to nothing.
    """

    steps: int
    shares: Mapping[Modality, int]
    language_rate: float
    early: float
    scenes: Scenes = SCENES
    seed: int = 0
    warm: int = 40
    tower_rate: float = 0.004
    text_tokens: int = 1024
    rehearsed: float = 0.5
    fields: float = 0.0
    check_every: int = 200

    def scale(self, step: int) -> float:
        return share_of_rate(step, self.steps, warm=self.warm, falling=self.steps * (1 - self.early))


COURSES = (
    Course(400, {"image": 24, "audio": 10, "video": 10}, language_rate=0.006, early=1.0),
    Course(1200, {"image": 38, "audio": 6, "video": 4}, language_rate=0.01, early=0.3, seed=1),
    Course(
        400,
        {"image": 44, "audio": 2, "video": 2},
        language_rate=0.008,
        early=0.1,
        scenes=Scenes(most=4, single=0.15),
        seed=2,
    ),
    Course(
        300,
        {"image": 14, "audio": 2, "video": 2},
        language_rate=0.006,
        early=0.1,
        scenes=Scenes(most=4, single=0.3),
        seed=3,
        tower_rate=0.001,
        text_tokens=3072,
        rehearsed=1.0,
        check_every=150,
    ),
    Course(
        1200,
        {"image": 20, "audio": 2, "video": 2},
        language_rate=0.008,
        early=0.15,
        scenes=Scenes(most=4, single=0.3),
        seed=4,
        tower_rate=0.003,
        text_tokens=3072,
        rehearsed=1.0,
        fields=0.5,
    ),
    Course(
        1200,
        {"image": 20, "audio": 3, "video": 3},
        language_rate=0.006,
        early=0.2,
        scenes=Scenes(most=4, single=0.2, crossed=0.4),
        seed=5,
        tower_rate=0.002,
        text_tokens=3072,
        rehearsed=1.0,
        fields=0.5,
    ),
)
"""All kinds alike first, until sounds and clips are learnt; then mostly pictures, of which there is more to say; then
those that show two to four things. Text suffers under that, so from there on it has more room. At last come pictures in
which neither shape nor colour alone tells which thing is meant: before them, "the blue star" was any star.
"""


def train(
    course: Course, language: transformers.LlamaForCausalLM, tower: Tower, tokenizer: Tokenizer, folder: Path
) -> None:
    """Train both by ``course``; the checkpoint goes to ``folder``."""
    learner = Learner(language, tower, tokenizer)
    optimizers = (
        MasterWeights(language, course.language_rate, course.language_rate / 5),
        MasterWeights(tower, course.tower_rate, course.tower_rate * 0.15),
        MasterWeights(learner.fields, 0.02, 0.004),
    )
    shown, rehearsed = conversations(tokenizer, course), rehearsals(tokenizer, course.seed, course.text_tokens)
    started, mean = time.monotonic(), [0.0, 0.0, 0.0]
    for step in range(course.steps):
        language.set_attn_implementation("eager")
        losses = [*learner.loss(next(shown)), weighted_loss(language, *next(rehearsed))]
        (losses[0] + course.fields * losses[1] + course.rehearsed * losses[2]).backward()
        for optimizer in optimizers:
            optimizer.step(course.scale(step))
        mean = [0.95 * old + 0.05 * new.item() if step else new.item() for old, new in zip(mean, losses, strict=True)]
        if step % 20 == 0:
            seconds = time.monotonic() - started
            told = "  ".join(f"{name} {loss:.4f}" for name, loss in zip(("shown", "fields", "text"), mean, strict=True))
            print(f"step {step:5}  {told}  {seconds:6.0f} s", flush=True)
        if (step + 1) % course.check_every == 0:
            by_skill, _ = check(learner, tokenizer, 60, seed=1)
            print("  ".join(f"{name} {right / total:.0%}" for name, (right, total) in by_skill.items()), flush=True)
            save(language, tower, tokenizer, folder)
    save(language, tower, tokenizer, folder)


def taught(language: transformers.LlamaForCausalLM, lessons: Lessons, kept: Path) -> Tower:
    """A tower after its lessons, taken from ``kept`` where the same were given before, its embeddings as loud as those
    of text.
    """
    torch.manual_seed(lessons.seed)
    hidden = language.config.hidden_size
    tower = Tower(hidden)
    first_weights(tower)
    tower = tower.bfloat16()
    found = torch.load(kept, weights_only=True) if kept.exists() else {}
    if found.get("lessons") == asdict(lessons):
        tower.load_state_dict(found["tower"])
        return tower
    teach(tower, hidden, lessons)
    set_level(tower, language.get_input_embeddings().weight.float().pow(2).mean().sqrt().item())
    torch.save({"lessons": asdict(lessons), "tower": tower.state_dict()}, kept)
    return tower


def conversations(tokenizer: Tokenizer, course: Course) -> Iterator[Batch]:
    """Endless batches of conversations about what is shown."""
    rng = Random(f"senses {course.seed}")
    texts = stream("train", rng, late=True)
    kinds = [kind for kind, count in course.shares.items() for _ in range(count)]
    while True:
        rows = [conversation(tokenizer, kind, texts, rng, course.scenes) for kind in kinds]
        yield collate(tokenizer, pack(rows, PACKED))


def rehearsals(tokenizer: Tokenizer, seed: int, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of ``tokens`` of the text that the language model knows already."""
    rng = Random(f"rehearsals {seed}")
    rows = rows_by_length(tokenizer, seed + 1, late=True)
    while True:
        length = rng.choices(list(LENGTHS), list(LENGTHS.values()))[0]
        ids, weights = rows[length].batch(max(1, tokens // length))
        yield torch.from_numpy(ids), torch.from_numpy(weights)


def main() -> None:
    """Train, write the checkpoint and print its accuracy on held-out pictures, sounds and clips by skill."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.senses.train", description=main.__doc__)
    parser.add_argument("--text", type=Path, default=CHECKPOINT, help="folder of the text model to begin with")
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where the tower is kept after its lessons")
    parser.add_argument("--course", type=int, default=1, help="go on with this course from what is in --folder")
    options = parser.parse_args()
    if options.course == 1:
        language, tokenizer = load_text(options.text)
        tower = taught(language, Lessons(1800), options.kept)
    else:
        language, tokenizer = load_text(options.folder)
        tower = load_tower(options.folder, language.config.hidden_size)
    for course in COURSES[options.course - 1 :]:
        train(course, language, tower, tokenizer, options.folder)


if __name__ == "__main__":
    main()
