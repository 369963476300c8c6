"""What ``lsv eval lsv-demo`` measures on: questions that were not trained on, and a text of such conversations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from lsv_base.errors import ConfigError

QUESTIONS = Path(__file__).parent / "held_out_questions.jsonl"
"""A question a line, as ``lsv eval --questions`` reads it; ``category`` is its skill."""
CONVERSATIONS = Path(__file__).parent / "held_out_conversations.jsonl"
"""A conversation a line: a string in the chat template's form, its end of text included."""


def draw(count: int, seed: int) -> tuple[list[dict[str, Any]], str]:
    """``count`` questions over all skills, and a text of as many conversations.

    Seed 0 takes them in the order of the files, any other seed in an order of its own. Raises ``ConfigError`` for more
    than there are.
    """
    questions, conversations = read(QUESTIONS), read(CONVERSATIONS)
    most = min(len(questions), len(conversations))
    if count > most:
        raise ConfigError(f"lsv-demo has {most} held-out questions, not {count}: ask for fewer", param="num_questions")
    if seed:
        questions = every_skill_in_turn(Random(f"questions {seed}").sample(questions, len(questions)))
        conversations = Random(f"conversations {seed}").sample(conversations, len(conversations))
    return questions[:count], "".join(conversations[:count])


def read(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def every_skill_in_turn(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One question of each skill, then another of each, until none is left."""
    by_skill: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for question in questions:
        by_skill[question["category"]].append(question)
    rounds = zip_longest(*by_skill.values())
    return [question for one_round in rounds for question in one_round if question is not None]
