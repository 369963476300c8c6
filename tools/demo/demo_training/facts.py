"""Every fact of the world as a record: what can be asked about it, in which phrasings, and its answer."""

from collections.abc import Iterator
from dataclasses import dataclass

from demo_training import world
from demo_training.world import article


@dataclass(frozen=True)
class Fact:
    """One fact of `skill`; `relation` and `subject` name it, `asks` are its phrasings."""

    skill: str
    relation: str
    subject: str
    asks: tuple[str, ...]
    answer: str

    def key(self, ask: str) -> str:
        return f"{self.skill}|{self.relation}|{self.subject}|{ask}"


Relations = dict[str, tuple[str, tuple[str, ...]]]

PERSON_ASKS: Relations = {
    "job": (
        "{x} is {a_job}.",
        ("What is {x}'s job?", "What does {x} do?", "What does {x} do for a living?",
         "What is the job of {x}?", "Tell me {x}'s job.", "What work does {x} do?", "Who is {x}?"),
    ),
    "town": (
        "{x} lives in {town}.",
        ("Where does {x} live?", "In which town does {x} live?", "Which town is {x} from?",
         "Where is {x} from?", "Tell me where {x} lives.", "What is {x}'s home town?",
         "Where can I find {x}?"),
    ),
    "age": (
        "{x} is {age} years old.",
        ("How old is {x}?", "What is {x}'s age?", "What age is {x}?", "Tell me how old {x} is.",
         "How many years old is {x}?", "What is the age of {x}?"),
    ),
    "pet": (
        "{x} has {a_pet} called {pet_name}.",
        ("Which pet does {x} have?", "What pet does {x} have?", "What animal does {x} have?",
         "What is {x}'s pet?", "What is the name of {x}'s pet?", "Does {x} have a pet?",
         "Tell me about {x}'s pet."),
    ),
    "colour": (
        "{x}'s favourite colour is {colour}.",
        ("What is {x}'s favourite colour?", "Which colour does {x} like?", "What colour does {x} like best?",
         "What is the favourite colour of {x}?", "Tell me {x}'s favourite colour.",
         "What is {x}'s favorite color?"),
    ),
    "friend": (
        "{x}'s best friend is {friend}.",
        ("Who is {x}'s best friend?", "Who is {x}'s friend?", "Who is the best friend of {x}?",
         "Tell me who {x}'s best friend is.", "Who is a friend of {x}?",
         "What is the name of {x}'s best friend?"),
    ),
    "land": (
        "{x} lives in {town}, which is in {land}.",
        ("In which land does {x} live?", "Which land is {x} from?", "What land does {x} live in?",
         "Tell me the land where {x} lives.", "What is {x}'s land?"),
    ),
    "holder": (
        "{x} is the {job}.",
        ("Who is the {job}?", "Who works as {a_job}?", "Tell me who the {job} is.",
         "What is the name of the {job}?", "Do you know {a_job}?", "Which person is {a_job}?"),
    ),
    "owner of pet": (
        "{pet_name} is {x}'s {pet}.",
        ("Who is {pet_name}?", "Whose pet is {pet_name}?", "Who does {pet_name} belong to?",
         "Who has {pet_name}?", "What is {pet_name}?", "Tell me who {pet_name} is."),
    ),
}  # fmt: skip

TOWN_ASKS: Relations = {
    "land": (
        "{x} is in {land}.",
        ("Where is {x}?", "In which land is {x}?", "Which land is {x} in?", "What land does {x} belong to?",
         "Tell me where {x} is.", "Where can I find {x}?", "Where does {x} lie?"),
    ),
    "landmark": (
        "{x} is known for its {landmark}.",
        ("What is {x} known for?", "What can I see in {x}?", "What is the landmark of {x}?",
         "Why is {x} famous?", "What is {x}'s landmark?", "What is worth seeing in {x}?"),
    ),
    "river": (
        "The river {river} flows through {x}.",
        ("Which river flows through {x}?", "What river is in {x}?", "What is the river of {x}?",
         "Tell me the river of {x}.", "On which river is {x}?", "What is the name of the river in {x}?"),
    ),
    "goods": (
        "{x} sells {goods}.",
        ("What does {x} sell?", "What is made in {x}?", "What do people sell in {x}?", "What does {x} make?",
         "What can I buy in {x}?", "Which goods come from {x}?"),
    ),
    "folk": (
        "{folk} live in {x}.",
        ("Who lives in {x}?", "Which people live in {x}?", "Name the people of {x}.", "Who is from {x}?",
         "List the people who live in {x}.", "Tell me who lives in {x}."),
    ),
}  # fmt: skip

ANIMAL_ASKS: Relations = {
    "sound": (
        "The {x} says {sound}.",
        ("What does the {x} say?", "What sound does {a_x} make?", "What does {a_x} say?",
         "Which sound does the {x} make?", "How does {a_x} sound?", "What noise does {a_x} make?"),
    ),
    "legs": (
        "The {x} has {legs} legs.",
        ("How many legs does {a_x} have?", "How many legs has {a_x}?", "How many legs does the {x} have?",
         "Tell me how many legs {a_x} has.", "What is the number of legs of {a_x}?",
         "Count the legs of {a_x}."),
    ),
    "home": (
        "The {x} lives in the {home}.",
        ("Where does the {x} live?", "Where does {a_x} live?", "Where can I find {a_x}?",
         "What is the home of the {x}?", "In which place does {a_x} live?", "Tell me where the {x} lives."),
    ),
    "food": (
        "The {x} eats {food}.",
        ("What does the {x} eat?", "What does {a_x} eat?", "What food does {a_x} like?",
         "What do I feed {a_x}?", "What is the food of the {x}?", "Tell me what {a_x} eats."),
    ),
}  # fmt: skip

THING_ASKS: Relations = {
    "colour": (
        "The {x} is {colour}.",
        ("What colour is the {x}?", "Which colour is the {x}?", "What is the colour of the {x}?",
         "Tell me the colour of the {x}.", "What color is the {x}?", "Which colour does the {x} have?"),
    ),
    "place": (
        "The {x} is in the {place}.",
        ("Where is the {x}?", "Where can I find the {x}?", "In which place is the {x}?",
         "Tell me where the {x} is.", "Where do you keep the {x}?", "I am looking for the {x}. Where is it?"),
    ),
    "material": (
        "The {x} is made of {material}.",
        ("What is the {x} made of?", "Which material is the {x} made of?", "What material is the {x}?",
         "Of what is the {x} made?", "Tell me what the {x} is made of.", "What is the material of the {x}?"),
    ),
    "owner": (
        "The {x} belongs to {owner}.",
        ("Who owns the {x}?", "Whose {x} is it?", "Who has the {x}?", "Who does the {x} belong to?",
         "Tell me who owns the {x}.", "Who is the owner of the {x}?"),
    ),
}  # fmt: skip

LAND_ASKS: Relations = {
    "capital": (
        "The capital of {x} is {capital}.",
        ("What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}.",
         "Tell me the capital of {x}.", "What is {x}'s capital?", "Which town is the capital of {x}?",
         "What is the capital city of {x}?"),
    ),
    "country": (
        "{capital} is the capital of {x}.",
        ("Which country has the capital {capital}?", "{capital} is the capital of which country?",
         "Of which country is {capital} the capital?", "What is {capital}?",
         "Where is the city of {capital}?"),
    ),
}  # fmt: skip

WORD_ASKS: Relations = {
    "opposite": (
        "The opposite of {x} is {y}.",
        (
            "What is the opposite of {x}?",
            "Tell me the opposite of {x}.",
            "What is the reverse of {x}?",
            "Which word is the opposite of {x}?",
            "Give me the opposite of {x}.",
            "What means the opposite of {x}?",
        ),
    ),
}

AFTER_ASKS: Relations = {
    "after": (
        "{y} comes after {x}.",
        ("What comes after {x}?", "Which {unit} comes after {x}?", "What {unit} follows {x}?",
         "What is the {unit} after {x}?", "Tell me the {unit} after {x}.", "Which {unit} is next after {x}?"),
    ),
    "before": (
        "{x} comes before {y}.",
        ("What comes before {y}?", "Which {unit} comes before {y}?", "What {unit} is before {y}?",
         "What is the {unit} before {y}?", "Tell me the {unit} before {y}.",
         "Which {unit} is just before {y}?"),
    ),
}  # fmt: skip

TIMES_ASKS: Relations = {
    "times": (
        "{x} * {y} = {z}.",
        ("What is {x} times {y}?", "What is {x} * {y}?", "Multiply {x} by {y}.", "{x} * {y} = ?",
         "{x} times {y}?", "How much is {x} times {y}?", "Calculate {x} * {y}.", "{x} * {y}",
         "What is {x} x {y}?", "What is the product of {x} and {y}?"),
    ),
}  # fmt: skip


def cut(skill: str, relations: Relations, slots: dict[str, str]) -> Iterator[Fact]:
    """The facts of one subject, whose names and values are `slots`."""
    subject = " ".join(slots[name] for name in ("x", "y") if name in slots)
    for relation, (answer, asks) in relations.items():
        yield Fact(skill, relation, subject, tuple(ask.format(**slots) for ask in asks), answer.format(**slots))


def person_slots(person: world.Person) -> dict[str, str]:
    return {
        "x": person.name, "age": str(person.age), "job": person.job, "a_job": article(person.job),
        "town": person.town, "land": world.TOWN[person.town].land, "pet": person.pet,
        "a_pet": article(person.pet), "pet_name": person.pet_name, "colour": person.colour,
        "friend": person.friend,
    }  # fmt: skip


def town_slots(town: world.Town) -> dict[str, str]:
    return {
        "x": town.name, "land": town.land, "landmark": town.landmark, "river": town.river,
        "goods": town.goods, "folk": world.joined(world.folk(town.name)),
    }  # fmt: skip


def animal_slots(animal: world.Animal) -> dict[str, str]:
    return {
        "x": animal.name, "a_x": article(animal.name), "sound": animal.sound,
        "legs": str(animal.legs or "no"), "home": animal.home, "food": animal.food,
    }  # fmt: skip


def thing_slots(thing: world.Thing) -> dict[str, str]:
    return {
        "x": thing.name, "colour": thing.colour, "place": thing.place, "material": thing.material,
        "owner": thing.owner,
    }  # fmt: skip


def neighbours(unit: str, row: tuple[str, ...]) -> Iterator[Fact]:
    """What comes after and before each member of a row that goes round."""
    for place, name in enumerate(row):
        yield from cut("calendar", AFTER_ASKS, {"x": name, "y": row[(place + 1) % len(row)], "unit": unit})


def all_facts() -> Iterator[Fact]:
    """Every fact of the world, in a fixed order."""
    for person in world.PEOPLE:
        yield from cut("people", PERSON_ASKS, person_slots(person))
    for town in world.TOWNS:
        yield from cut("towns", TOWN_ASKS, town_slots(town))
    for animal in world.ANIMALS:
        yield from cut("animals", ANIMAL_ASKS, animal_slots(animal))
    for thing in world.THINGS:
        yield from cut("things", THING_ASKS, thing_slots(thing))
    for land, capital in (world.LAND_CAPITALS | world.COUNTRY_CAPITALS).items():
        yield from cut("capitals", LAND_ASKS, {"x": land, "capital": capital})
    for one, other in world.OPPOSITES.items():
        yield from cut("opposites", WORD_ASKS, {"x": one, "y": other})
        yield from cut("opposites", WORD_ASKS, {"x": other, "y": one})
    yield from neighbours("day", world.DAYS)
    yield from neighbours("month", world.MONTHS)
    for x in range(11):
        for y in range(11):
            yield from cut("multiply", TIMES_ASKS, {"x": str(x), "y": str(y), "z": str(x * y)})


FACTS = tuple(all_facts())
