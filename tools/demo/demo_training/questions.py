"""Questions with their one right answer, split into a training part and a held-out part.

The split is by a hash of what a question asks, not of its wording alone. Each question carries a key: for
sums, comparisons and counts the operands; for repeat, reverse, translate and memory the words to be handled;
for facts of the world the fact *and* the phrasing together, so that a held-out question asks for a fact seen
in training in a phrasing that was never seen with that fact. A key falls wholly on one side.

`python -m demo_training.questions --count 3000 > held_out.jsonl` writes held-out questions, one JSON object a line,
as `lsv eval --questions held_out.jsonl` takes them.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

from demo_training.chat import dress
from demo_training.question import Question, Split, correct
from demo_training.skills import SKILLS, draw

__all__ = ["Question", "as_record", "correct", "questions", "stream"]


def stream(split: Split, rng: Random, late: bool = False) -> Iterator[Question]:
    """Endless undressed questions of `split`, skills by their early or late weights; any may come again."""
    names = sorted(SKILLS)
    weights = [SKILLS[name].late_weight if late else SKILLS[name].weight for name in names]
    while True:
        yield draw(rng.choices(names, weights)[0], split, rng)


def questions(split: Split, count: int, seed: int) -> list[Question]:
    """Up to `count` distinct questions of `split`, every skill in turn, dressed as conversations.

    The same seed gives the same list. A skill that has no further question to give is skipped.
    """
    rng = Random(f"{split} {seed}")
    names = sorted(SKILLS)
    found: list[Question] = []
    seen: set[str] = set()
    tries = 0
    while len(found) < count and tries < 100 * (count + len(names)):
        question = draw(names[tries % len(names)], split, rng)
        tries += 1
        if question.key not in seen:
            seen.add(question.key)
            found.append(dress(question, rng))
    return found


def as_record(question: Question) -> dict[str, Any]:
    """The question as `lsv eval --questions` reads it; its skill is its category."""
    return {
        "category": question.skill,
        "messages": list(question.messages),
        "answer": question.answer,
        "key": question.key,
    }


def main() -> None:
    """Write held-out questions as JSON lines on standard output."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.questions", description=main.__doc__)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for question in questions("test", options.count, options.seed):
        sys.stdout.write(json.dumps(as_record(question), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
