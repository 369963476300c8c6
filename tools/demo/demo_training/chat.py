"""Puts a bare question into a conversation: a system turn, earlier turns, casual spelling."""

from dataclasses import replace
from random import Random

from demo_training.facts import FACTS
from demo_training.question import Message, Question, system, user
from demo_training.skills.context import chatter

SYSTEMS = (
    "You are lsv-demo.", "You are a helpful assistant.",
    "You are lsv-demo, a small and helpful language model.",
    "You are a friendly assistant. Answer briefly.", "Answer the questions of the user.", "Be brief.",
    "You are a chat bot.", "You are a careful assistant who answers every question truthfully.",
)  # fmt: skip

CONTRACTIONS = {"What is ": "What's ", "Who is ": "Who's ", "Where is ": "Where's "}

# Skills whose subject can be recognised in any case of letters.
CASELESS = frozenset({"people", "towns", "animals", "things", "capitals", "opposites", "calendar", "multiply", "add"})

# Skills that end in a list of words, where a dropped full stop or a word put before would change the task.
VERBATIM = frozenset({"repeat", "reverse", "first and last", "capital letters", "translate", "greeting", "json"})

OPENINGS = (
    "Please tell me: ",
    "Hi! ",
    "Hello. ",
    "A question: ",
    "Quick question: ",
    "Can you help me? ",
    "So, ",
)


def casual(question: Question, ask: str, rng: Random) -> str:
    """`ask` as people type it: an opening, no final stop, or no capitals, where this keeps its meaning."""
    if question.skill in VERBATIM:
        return ask
    if rng.random() < 0.15:
        for full, short in CONTRACTIONS.items():
            ask = ask.replace(full, short)
    if rng.random() < 0.12:
        ask = rng.choice(OPENINGS) + ask
    if rng.random() < 0.15:
        ask = ask.rstrip("?.")
    if question.skill in CASELESS and rng.random() < 0.12:
        ask = ask.lower()
    return ask


def facts_system(rng: Random, sentences: int) -> str:
    """A long system turn: `sentences` true statements about the world."""
    told = " ".join(fact.answer for fact in rng.sample([fact for fact in FACTS if fact.skill != "multiply"], sentences))
    return f"{rng.choice(SYSTEMS)} {told}"


def system_turn(rng: Random) -> list[Message]:
    """No system turn in half of the conversations, else a usual one, rarely one that tells facts."""
    chance = rng.random()
    if chance < 0.55:
        return []
    if chance < 0.95:
        return [system(rng.choice(SYSTEMS))]
    return [system(facts_system(rng, rng.randint(2, 8)))]


def dress(question: Question, rng: Random, turns: int | None = None) -> Question:
    """`question` in a conversation of `turns` earlier turns (None: mostly none, up to three)."""
    if question.messages[0]["role"] == "system":
        return question
    if turns is None:
        turns = rng.choices((0, 1, 2, 3), (14, 2, 1, 1))[0]
    *before, last = question.messages
    ask = casual(question, last["content"], rng)
    return replace(question, messages=(*system_turn(rng), *chatter(turns, rng), *before, user(ask)))
