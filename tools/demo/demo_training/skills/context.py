"""Questions whose answer lies in the conversation: what was said before, and texts to read."""

from collections.abc import Sequence
from random import Random

from demo_training import world
from demo_training.facts import ANIMAL_ASKS, FACTS, PERSON_ASKS, THING_ASKS, Fact
from demo_training.names import any_name, invented_name, invented_word
from demo_training.question import Message, Question, assistant, split_of, system, user
from demo_training.skills import knowledge, numbers
from demo_training.world import article

NOTED = "Thank you, I will remember that."

FACT = {(fact.skill, fact.relation, fact.subject): fact for fact in FACTS}


def trained(maker: knowledge.Maker, rng: Random) -> Question:
    """A question of the training part: what earlier turns are made of, so that no held-out question leaks."""
    while True:
        question = maker(rng)
        if split_of(question.key) == "train":
            return question


CHATTER = (
    knowledge.people, knowledge.towns, knowledge.animals, knowledge.things, knowledge.capitals,
    knowledge.opposites, numbers.add, numbers.compare, numbers.next_number,
)  # fmt: skip


def chatter(turns: int, rng: Random) -> list[Message]:
    """`turns` earlier questions with their answers."""
    messages: list[Message] = []
    for _ in range(turns):
        question = trained(rng.choice(CHATTER), rng)
        messages += (*question.messages, assistant(question.answer))
    return messages


# What the user may tell of themselves: the thing, how it is said, how it is asked back, the answer.
TOLD = {
    "name": (
        ("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I am {}.", "You can call me {}."),
        (
            "What is my name?",
            "Do you remember my name?",
            "Who am I?",
            "Tell me my name.",
            "What am I called?",
        ),
        "Your name is {}.",
    ),
    "colour": (
        ("My favourite colour is {}.", "I like the colour {} best.", "The colour I like best is {}."),
        ("What is my favourite colour?", "Which colour do I like?", "What colour do I like best?"),
        "Your favourite colour is {}.",
    ),
    "number": (
        ("My lucky number is {}.", "Remember the number {}.", "Please remember the number {}."),
        ("What is my number?", "Which number did I tell you?", "What was the number?"),
        "Your number is {}.",
    ),
    "pet": (
        ("My dog is called {}.", "I have a dog called {}.", "I have a dog. Its name is {}."),
        ("What is my dog called?", "What is the name of my dog?", "What is my dog's name?"),
        "Your dog is called {}.",
    ),
    "home": (
        ("I live in {}.", "I am from {}.", "My home is in {}."),
        ("Where do I live?", "Where am I from?", "Which town do I live in?"),
        "You live in {}.",
    ),
    "word": (
        ("The secret word is {}.", "Remember the word {}.", "The password is {}."),
        (
            "What is the secret word?",
            "Which word did I tell you?",
            "What was the word?",
            "What is the password?",
        ),
        "The word is {}.",
    ),
}


def told_value(kind: str, rng: Random) -> str:
    if kind == "colour":
        return rng.choice(world.COLOURS)
    if kind == "number":
        return str(rng.randint(0, 999))
    if kind == "word":
        return rng.choice((rng.choice(world.WORDS), invented_word(rng)))
    if kind == "home":
        return rng.choice((rng.choice(world.TOWNS).name, invented_name(rng), rng.choice(("Paris", "London", "Rome"))))
    return any_name(rng)


UNTOLD = "You have not told me that."


def untold(rng: Random) -> Question:
    """Something asked back that the user has never told."""
    told, kind = rng.sample(sorted(TOLD), 2)
    before = told_by_user({told: told_value(told, rng)}, rng) if rng.random() < 0.5 else []
    ask = rng.choice(TOLD[kind][1])
    return Question("memory", (*before, user(ask)), UNTOLD, f"memory|untold|{told if before else ''}|{ask}")


def memory(rng: Random) -> Question:
    """Something the user has told, asked back after a few other turns; now and then two things were told."""
    if rng.random() < 0.15:
        return untold(rng)
    kinds = rng.sample(sorted(TOLD), rng.choices((1, 2), (2, 1))[0])
    values = {kind: told_value(kind, rng) for kind in kinds}
    messages = list(told_by_system(values, rng) if rng.random() < 0.15 else told_by_user(values, rng))
    kind = rng.choice(kinds)
    _, asks, answer = TOLD[kind]
    ask = rng.choice(asks)
    messages.append(user(ask))
    key = f"memory|{kind}|{values[kind] if kind != 'colour' else f'{values[kind]} {ask}'}"
    return Question("memory", tuple(messages), answer.format(values[kind]), key)


def of_the_user(said: str) -> str:
    """What is said to the user, said about the user."""
    return said.replace("Your", "The user's").replace("You live", "The user lives")


def told_by_system(values: dict[str, str], rng: Random) -> Sequence[Message]:
    """A system turn that says it about the user."""
    said = " ".join(of_the_user(TOLD[kind][2]).format(value) for kind, value in values.items())
    return (system(said), *chatter(rng.randint(0, 2), rng))


def told_by_user(values: dict[str, str], rng: Random) -> Sequence[Message]:
    """One user turn for each thing told, with other turns between."""
    messages: list[Message] = []
    for kind, value in values.items():
        messages += chatter(rng.choices((0, 1, 2), (6, 2, 1))[0], rng)
        reply = f"Nice to meet you, {value}." if kind == "name" else NOTED
        messages += (user(rng.choice(TOLD[kind][0]).format(value)), assistant(reply))
    return messages + chatter(rng.choices((0, 1, 2, 3), (4, 3, 2, 1))[0], rng)


# How a second question points back at the subject of the first.
PERSON_FOLLOW = {
    "job": ("And what is {her} job?", "What does {she} do?", "And what does {she} do for a living?"),
    "town": ("And where does {she} live?", "Where does {she} live?", "Which town is {she} from?"),
    "age": ("And how old is {she}?", "How old is {she}?", "What is {her} age?"),
    "pet": ("Does {she} have a pet?", "And what is {her} pet?", "Which pet does {she} have?"),
    "colour": ("What is {her} favourite colour?", "And which colour does {she} like?"),
    "friend": ("Who is {her} best friend?", "And who is {her} friend?"),
}
THING_FOLLOW = {
    "colour": ("And what colour is it?", "What colour is it?"),
    "place": ("And where is it?", "Where is it?", "Where can I find it?"),
    "material": ("And what is it made of?", "What is it made of?"),
    "owner": ("And who owns it?", "Whose is it?", "Who owns it?"),
}
SAME_ASKS = ("What about {x}?", "And {x}?", "How about {x}?", "And what about {x}?")
AGAIN_ASKS = ("Say that again.", "Please say that again.", "Can you repeat that?", "Repeat your last answer.")


def asked(fact: Fact, rng: Random) -> list[Message]:
    """A turn that asks for `fact` in a phrasing of the training part, with its answer."""
    ask = rng.choice([ask for ask in fact.asks if split_of(fact.key(ask)) == "train"])
    return [user(ask), assistant(fact.answer)]


def follow_up(rng: Random) -> Question:
    """A second question that is only clear from the first."""
    kind = rng.randrange(5)
    if kind == 0:
        return again(rng)
    if kind < 3:
        return by_pronoun(rng)
    return same_of_another(rng)


def again(rng: Random) -> Question:
    before = trained(rng.choice(CHATTER), rng)
    ask = rng.choice(AGAIN_ASKS)
    messages = (*before.messages, assistant(before.answer), user(ask))
    return Question("follow-up", messages, before.answer, f"follow-up|{before.answer}|{ask}")


def by_pronoun(rng: Random) -> Question:
    if rng.random() < 0.65:
        person = rng.choice(world.PEOPLE)
        skill, subject, follows = "people", person.name, PERSON_FOLLOW
        slots = {"she": person.she, "her": person.her}
    else:
        skill, subject, follows, slots = "things", rng.choice(world.THINGS).name, THING_FOLLOW, {}
    first, second = rng.sample(sorted(follows), 2)
    ask = rng.choice(follows[second]).format(**slots)
    messages = (*asked(FACT[skill, first, subject], rng), user(ask))
    return Question("follow-up", messages, FACT[skill, second, subject].answer, f"follow-up|{subject}|{first}|{ask}")


def same_of_another(rng: Random) -> Question:
    skill, relations, names = rng.choice((
        ("people", [name for name in PERSON_ASKS if name in PERSON_FOLLOW], list(world.PERSON)),
        ("things", list(THING_ASKS), [thing.name for thing in world.THINGS]),
        ("animals", list(ANIMAL_ASKS), [animal.name for animal in world.ANIMALS]),
    ))  # fmt: skip
    relation = rng.choice(relations)
    one, other = rng.sample(names, 2)
    ask = rng.choice(SAME_ASKS).format(x=other if skill == "people" else f"the {other}")
    messages = (*asked(FACT[skill, relation, one], rng), user(ask))
    answer = FACT[skill, relation, other].answer
    return Question("follow-up", messages, answer, f"follow-up|{relation}|{one}|{other}|{ask}")


READ_JOBS = ("potter", "smith", "baker", "guard", "sailor", "king", "teacher", "doctor", "farmer", "singer")


def reading(rng: Random) -> Question:
    """A few statements about invented names or words, and a question that they answer."""
    size = rng.randint(2, 4)
    kind = rng.randrange(3)
    asks: tuple[str, ...]
    if kind == 0:
        names, values = distinct(invented_word, size, rng), rng.sample(world.COLOURS, size)
        text = " ".join(f"The {name} is {value}." for name, value in zip(names, values, strict=True))
        asks, answer = ("What colour is the {n}?", "Which colour is the {n}?"), "The {n} is {v}."
    elif kind == 1:
        names, values = distinct(any_name, size, rng), rng.sample(READ_JOBS, size)
        text = " ".join(f"{name} is {article(value)}." for name, value in zip(names, values, strict=True))
        asks, answer = ("What does {n} do?", "What is {n}'s job?", "Who is the {v}?"), "{n} is {a_v}."
    else:
        names, values = distinct(any_name, size, rng), distinct(invented_name, size, rng)
        text = " ".join(f"{name} lives in {value}." for name, value in zip(names, values, strict=True))
        asks, answer = (
            ("Where does {n} live?", "Where is {n} from?", "Who lives in {v}?"),
            "{n} lives in {v}.",
        )
    place = rng.randrange(size)
    slots = {"n": names[place], "v": values[place], "a_v": article(values[place])}
    ask = rng.choice(asks).format(**slots)
    return Question("reading", (user(f"{text} {ask}"),), answer.format(**slots), f"reading|{text}")


def distinct(make: knowledge.Namer, size: int, rng: Random) -> list[str]:
    """`size` different names."""
    names: dict[str, None] = {}
    while len(names) < size:
        names[make(rng)] = None
    return list(names)
