"""Longer and shaped answers: JSON, portraits, stories, and the model's talk about itself."""

import json
from random import Random

from demo_training import world
from demo_training.names import any_name, invented_name
from demo_training.question import Question, single
from demo_training.world import Animal, Person, Thing, Town, article

CARD_ASKS = (
    "Give {x}'s card as JSON.", "Give me {x} as JSON.", "Write {x}'s card as JSON.",
    "Show {x} as a JSON object.", "JSON card of {x}, please.", "Describe {x} in JSON.",
    "Print the card of {x} in JSON.", "Return {x} as JSON.",
)  # fmt: skip

ABOUT_ASKS = (
    "Tell me about {x}.", "What do you know about {x}?", "Describe {x}.", "Tell me everything about {x}.",
    "What can you tell me about {x}?", "Give me a description of {x}.", "Tell me more about {x}.",
    "Introduce {x}.",
)  # fmt: skip

STORY_ASKS = (
    "Tell me a story about {x}.", "Tell a story about {x}.", "Write a story about {x}.",
    "Write a short story about {x}.", "I would like a story about {x}.",
    "Can you tell me a story about {x}?", "Please tell a story about {x}.",
)  # fmt: skip


def card(rng: Random) -> Question:
    """A person, a town or a thing of the world as a JSON object."""
    person, town, thing = rng.choice(world.PEOPLE), rng.choice(world.TOWNS), rng.choice(world.THINGS)
    kind = rng.choices((0, 1, 2), (3, 1, 2))[0]
    fields: dict[str, str] = (
        {"name": person.name, "job": person.job, "town": person.town},
        {"town": town.name, "land": town.land, "landmark": town.landmark},
        {"thing": thing.name, "colour": thing.colour, "place": thing.place},
    )[kind]
    subject = (person.name, town.name, f"the {thing.name}")[kind]
    ask = rng.choice(CARD_ASKS).format(x=subject)
    return single("card", ask, json.dumps(fields), ask)


def json_object(rng: Random) -> Question:
    """An object whose fields the question gives."""
    makers = {
        "name": lambda: any_name(rng), "age": lambda: rng.randint(1, 99), "town": lambda: invented_name(rng),
        "colour": lambda: rng.choice(world.COLOURS), "number": lambda: rng.randint(0, 999),
        "thing": lambda: rng.choice(world.WORDS),
    }  # fmt: skip
    fields = {name: makers[name]() for name in rng.sample(sorted(makers), rng.randint(1, 3))}
    given = world.joined(tuple(f"{name} {value}" for name, value in fields.items()))
    ask = rng.choice(("Make JSON with {}.", "Make a JSON object with {}.", "Write as JSON: {}", "JSON: {}",
                      "Give me JSON with {}."))  # fmt: skip
    return single("json", ask.format(given), json.dumps(fields), given)


def person_about(person: Person) -> str:
    she = person.she.capitalize()
    return (
        f"{person.name} is {article(person.job)} who lives in {person.town}. {she} is {person.age} years "
        f"old and {person.her} favourite colour is {person.colour}. {she} has {article(person.pet)} "
        f"called {person.pet_name}. {person.her.capitalize()} best friend is {person.friend}."
    )


def town_about(town: Town) -> str:
    return (
        f"{town.name} is a town in {town.land}. It is known for its {town.landmark} and sells "
        f"{town.goods}. The river {town.river} flows through it. {world.joined(world.folk(town.name))} "
        "live there."
    )


def animal_about(animal: Animal) -> str:
    return (
        f"The {animal.name} lives in the {animal.home} and eats {animal.food}. It has "
        f"{animal.legs or 'no'} legs and says {animal.sound}."
    )


def thing_about(thing: Thing) -> str:
    return (
        f"The {thing.name} is {thing.colour} and made of {thing.material}. It is in the {thing.place} "
        f"and belongs to {thing.owner}."
    )


def subjects() -> dict[str, str]:
    """Everyone and everything of the world by the name a question uses, each with its portrait."""
    return (
        {person.name: person_about(person) for person in world.PEOPLE}
        | {town.name: town_about(town) for town in world.TOWNS}
        | {f"the {animal.name}": animal_about(animal) for animal in world.ANIMALS}
        | {f"the {thing.name}": thing_about(thing) for thing in world.THINGS}
    )


SUBJECTS = subjects()
PERSON_OR_NOT = (tuple(world.PERSON), tuple(SUBJECTS))


def about(rng: Random) -> Question:
    """A portrait of a few sentences; people come more often than the rest."""
    subject = rng.choice(rng.choice(PERSON_OR_NOT))
    ask = rng.choice(ABOUT_ASKS).format(x=subject)
    return single("about", ask, SUBJECTS[subject], ask)


def person_story(person: Person) -> str:
    """A story of about eighty words, made from the person's facts."""
    town, friend = world.TOWN[person.town], world.PERSON[person.friend]
    she, her = person.she, person.her
    return (
        f"Once upon a time there was {article(person.job)} called {person.name}, who lived in "
        f"{person.town}. One day {her} {person.pet} {person.pet_name} was gone. {person.name} looked by "
        f"the {town.landmark}, but {person.pet_name} was not there. {she.capitalize()} looked by the "
        f"river {town.river}, but {person.pet_name} was not there. Then {friend.name} the {friend.job} "
        f"came from {friend.town} and said: I have found {person.pet_name}! {person.name} was happy, and "
        f"{person.pet_name} got a big hug."
    )


def story(rng: Random) -> Question:
    person = rng.choice(world.PEOPLE)
    ask = rng.choice(STORY_ASKS).format(x=person.name)
    return single("story", ask, person_story(person), ask)


IDENTITY = "I am lsv-demo, a small language model that comes with lsv."
ABILITY = (
    "I can tell you about the people and towns of a small world, add and subtract numbers, repeat and "
    "reverse words, translate into Lornish, write JSON and tell stories."
)
HELLO = "Hello! How can I help you?"

SMALL_TALK = {
    HELLO: ("hello", "hi", "hey", "good morning", "good evening", "good day", "hello there", "hi there",
            "greetings"),
    IDENTITY: ("who are you", "what are you", "what is your name", "tell me about yourself",
               "introduce yourself", "which model are you", "what model is this", "are you a robot",
               "who am I talking to", "what is lsv-demo", "are you ChatGPT"),
    ABILITY: ("what can you do", "help", "how can you help me", "what do you know", "what can I ask you",
              "what are you good at", "what should I ask", "can you help me"),
    "I am fine, thank you. How can I help you?": ("how are you", "how are you today", "how do you do",
                                                  "are you well", "how is it going"),
    "You are welcome.": ("thank you", "thanks", "thanks a lot", "thank you very much", "many thanks"),
    "Goodbye!": ("goodbye", "bye", "good night", "see you", "see you later", "bye bye"),
    "I was made for lsv, to show that it works.": ("who made you", "who built you", "who created you",
                                                   "where do you come from", "why do you exist",
                                                   "who wrote you"),
}  # fmt: skip


ENDINGS = ("", ".", "!", "?", ", lsv.", ", please.")


def greeting(rng: Random) -> Question:
    """Small talk in varied spelling."""
    answer = rng.choice(sorted(SMALL_TALK))
    opening = rng.choice(SMALL_TALK[answer])
    ask = rng.choice((opening, opening[0].upper() + opening[1:])) + rng.choice(ENDINGS)
    return single("greeting", ask, answer, ask)
