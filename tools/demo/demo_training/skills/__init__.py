"""What the model can do: each skill makes random questions with their answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from demo_training.question import Question, Split, split_of
from demo_training.skills import context, knowledge, numbers, profile, words


@dataclass(frozen=True)
class Skill:
    """A maker of questions, and its share in the training text relative to the other skills.

    Facts are learnt soon, sums and work on words late: `weight` holds for the first part of training,
    `late_weight` for the rest.
    """

    ask: Callable[[Random], Question]
    weight: float
    late_weight: float


SKILLS: Mapping[str, Skill] = {
    "people": Skill(knowledge.people, 4, 2.5),
    "towns": Skill(knowledge.towns, 1.5, 1.2),
    "animals": Skill(knowledge.animals, 1.5, 0.8),
    "things": Skill(knowledge.things, 2, 1),
    "capitals": Skill(knowledge.capitals, 1.5, 1.5),
    "opposites": Skill(knowledge.opposites, 1, 0.8),
    "calendar": Skill(knowledge.calendar, 1, 1.5),
    "yes or no": Skill(knowledge.yes_or_no, 3, 3),
    "unknown": Skill(knowledge.unknown, 2.5, 2.5),
    "add": Skill(numbers.add, 4, 6),
    "subtract": Skill(numbers.subtract, 4, 5),
    "multiply": Skill(knowledge.multiply, 2, 2.5),
    "compare": Skill(numbers.compare, 2, 3),
    "next number": Skill(numbers.next_number, 1.5, 1.5),
    "count": Skill(numbers.count, 1, 2),
    "sort": Skill(numbers.sort, 1.5, 3),
    "repeat": Skill(words.repeat, 2, 2),
    "reverse": Skill(words.reverse, 1.5, 4),
    "capital letters": Skill(words.capital_letters, 1.5, 2.5),
    "spell": Skill(words.spell, 1, 2.5),
    "first and last": Skill(words.first_and_last, 1.5, 3),
    "translate": Skill(words.translate, 2, 4),
    "memory": Skill(context.memory, 3, 3),
    "follow-up": Skill(context.follow_up, 3, 2.5),
    "reading": Skill(context.reading, 2.5, 4),
    "json": Skill(profile.json_object, 2, 2),
    "card": Skill(profile.card, 1.5, 1.2),
    "about": Skill(profile.about, 2, 0.8),
    "story": Skill(profile.story, 1.5, 0.4),
    "greeting": Skill(profile.greeting, 1, 2),
}


def draw(skill: str, split: Split, rng: Random) -> Question:
    """One question of `skill` from `split`."""
    while True:
        question = SKILLS[skill].ask(rng)
        if split_of(question.key) == split:
            return question
