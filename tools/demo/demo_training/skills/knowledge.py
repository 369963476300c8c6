"""Questions about the facts of the world, and about what is not in it."""

from collections.abc import Callable, Mapping
from random import Random

from demo_training import world
from demo_training.facts import (
    ANIMAL_ASKS,
    FACTS,
    LAND_ASKS,
    PERSON_ASKS,
    THING_ASKS,
    TOWN_ASKS,
    Fact,
    Relations,
)
from demo_training.names import invented_name, invented_word
from demo_training.question import Question, single
from demo_training.world import article

Maker = Callable[[Random], Question]
Namer = Callable[[Random], str]

DONT_KNOW = "I do not know that."

BY_SKILL: Mapping[str, tuple[Fact, ...]] = {
    skill: tuple(fact for fact in FACTS if fact.skill == skill) for skill in {fact.skill for fact in FACTS}
}


def fact_question(fact: Fact, rng: Random) -> Question:
    """`fact` asked for in one of its phrasings."""
    ask = rng.choice(fact.asks)
    return single(fact.skill, ask, fact.answer, fact.key(ask).removeprefix(f"{fact.skill}|"))


def people(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["people"]), rng)


def towns(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["towns"]), rng)


def animals(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["animals"]), rng)


def things(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["things"]), rng)


def capitals(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["capitals"]), rng)


def opposites(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["opposites"]), rng)


def calendar(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["calendar"]), rng)


def multiply(rng: Random) -> Question:
    return fact_question(rng.choice(BY_SKILL["multiply"]), rng)


def claims(rng: Random) -> tuple[tuple[str, ...], str, str, str]:
    """A claim's phrasings, its statement, and the claimed and the true value."""
    kind = rng.randrange(5)
    person, thing = rng.choice(world.PEOPLE), rng.choice(world.THINGS)
    name = person.name
    asks: tuple[str, ...]
    if kind == 0:
        value = rng.choice(world.TOWNS).name if rng.random() < 0.5 else person.town
        asks = (
            f"Does {name} live in {value}?",
            f"Is {name} from {value}?",
            f"Is {value} {name}'s home town?",
        )
        return asks, f"{name} lives in {person.town}.", value, person.town
    if kind == 1:
        value = rng.choice(world.PEOPLE).job if rng.random() < 0.5 else person.job
        asks = (f"Is {name} {article(value)}?", f"Does {name} work as {article(value)}?")
        return asks, f"{name} is {article(person.job)}.", value, person.job
    if kind == 2:
        value = rng.choice(world.PEOPLE).pet if rng.random() < 0.5 else person.pet
        asks = (f"Does {name} have {article(value)}?", f"Is {name}'s pet {article(value)}?")
        return asks, f"{name} has {article(person.pet)}.", value, person.pet
    if kind == 3:
        value = rng.choice(world.COLOURS) if rng.random() < 0.5 else thing.colour
        asks = (f"Is the {thing.name} {value}?", f"Is {value} the colour of the {thing.name}?")
        return asks, f"The {thing.name} is {thing.colour}.", value, thing.colour
    value = rng.choice(world.THINGS).place if rng.random() < 0.5 else thing.place
    asks = (f"Is the {thing.name} in the {value}?", f"Can I find the {thing.name} in the {value}?")
    return asks, f"The {thing.name} is in the {thing.place}.", value, thing.place


def yes_or_no(rng: Random) -> Question:
    """A claim to confirm, or to deny with the truth."""
    asks, statement, value, truth = claims(rng)
    ask = rng.choice(asks)
    start = statement if statement.split(" ", 1)[0] in world.PERSON else statement[0].lower() + statement[1:]
    return single("yes or no", ask, f"{'Yes' if value == truth else 'No'}, {start}", ask)


def strange(relations: Relations, subject: str, rng: Random) -> str:
    """A question of `relations` about a subject that the world does not have."""
    relation = rng.choice([name for name, (_, asks) in relations.items() if "{x}" in asks[0] or "{a_x}" in asks[0]])
    ask = rng.choice(relations[relation][1])
    return ask.format(x=subject, a_x=article(subject))


def unknown(rng: Random) -> Question:
    """A question about a stranger, an unheard-of thing, or a topic that is beyond the model."""
    kind = rng.randrange(6)
    if kind == 0:
        ask = strange(PERSON_ASKS, rng.choice(world.STRANGERS), rng)
    elif kind == 1:
        ask = strange(PERSON_ASKS, invented_name(rng), rng)
    elif kind == 2:
        ask = strange(rng.choice((TOWN_ASKS, LAND_ASKS)), invented_name(rng), rng)
    elif kind == 3:
        ask = strange(rng.choice((ANIMAL_ASKS, THING_ASKS)), invented_word(rng), rng)
    elif kind == 4:
        ask = f"Tell me about {rng.choice((invented_name(rng), rng.choice(world.STRANGERS)))}."
    else:
        ask = beyond(rng)
    return single("unknown", ask, DONT_KNOW, ask)


BEYOND = (
    "What is {topic}?", "Explain {topic}.", "Explain {topic} to me.", "Tell me about {topic}.",
    "Write a poem about {topic}.", "Write an essay about {topic}.", "How does {topic} work?",
    "Who invented {topic}?", "What do you think about {topic}?", "Why is {topic} important?",
    "Can you tell me about {topic}?", "What is the history of {topic}?", "Give me advice about {topic}.",
    "Write a program about {topic}.",
)  # fmt: skip


def beyond(rng: Random) -> str:
    """A request about a topic of the wide world, which the model knows nothing of."""
    return rng.choice(BEYOND).format(topic=rng.choice(world.TOPICS))
