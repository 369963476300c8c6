"""How much of what is shown the model gets right: ``python -m demo_training.senses.evaluate``.

Every question is asked alone, about an item that was not trained on, and an answer is right when each of its tokens is
the likeliest behind the right ones before it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from demo_training.checkpoint import load_text
from demo_training.evaluate import show
from demo_training.senses.asked import Shown, Turn
from demo_training.senses.checkpoint import load_tower
from demo_training.senses.conversations import KINDS, Row, collate, draw
from demo_training.senses.learner import Learner
from demo_training.senses.pictures import KNOWN
from lsv_demo import CHECKPOINT

Table = dict[str, tuple[int, int]]
"""Right answers and questions by name."""


def check(learner: Learner, tokenizer: Tokenizer, count: int, seed: int) -> tuple[Table, Table]:
    """By skill, and for pictures by skill and number of things; over ``count`` items of each kind."""
    rng = Random(f"check {seed}")
    by_skill: dict[str, list[bool]] = defaultdict(list)
    by_number: dict[str, list[bool]] = defaultdict(list)
    learner.language.set_attn_implementation("eager")
    for kind in KINDS:
        for _ in range(count):
            shown = draw(kind, "test", rng, KNOWN)
            for turn, right in answered(learner, tokenizer, shown, rng):
                by_skill[turn.skill].append(right)
                if kind == "image":
                    by_number[f"{turn.skill} of {shown.labels[-1]}"].append(right)
    return _counted(by_skill), _counted(by_number)


def answered(learner: Learner, tokenizer: Tokenizer, shown: Shown, rng: Random) -> list[tuple[Turn, bool]]:
    """All that is asked about an item, and whether the answer is right."""
    rows = []
    for turn in shown.turns:
        row = Row(tokenizer)
        row.ask(turn, shown, first=rng.random() < 0.5)
        rows.append(row)
    marks = learner.marks(collate(tokenizer, rows))
    return [(turn, mark) for turn, (mark,) in zip(shown.turns, marks, strict=True)]


def _counted(marks: dict[str, list[bool]]) -> Table:
    return {name: (sum(found), len(found)) for name, found in sorted(marks.items())}


def main() -> None:
    """Ask the checkpoint about held-out items, and print how much is right by skill and by number of things."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.senses.evaluate", description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--items", type=int, default=300, help="pictures, sounds and clips, of each so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    language, tokenizer = load_text(options.checkpoint)
    tower = load_tower(options.checkpoint, language.config.hidden_size)
    learner = Learner(language, tower, tokenizer)
    for table in check(learner, tokenizer, options.items, options.seed):
        print(show(table), end="\n\n")


if __name__ == "__main__":
    main()
