"""What is asked of a model with functions: a question, the calls it needs, their results, and an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, mul, sub, truediv
from random import Random
from typing import Any

from demo_training import world
from demo_training.chat import casual
from demo_training.functions.offered import Function, Offer
from demo_training.names import invented_name
from demo_training.question import Question, Split, split_of
from demo_training.skills import SKILLS, draw
from demo_training.skills.knowledge import DONT_KNOW
from demo_training.skills.numbers import ADD_ASKS, SUBTRACT_ASKS

Said = dict[str, Any]
"""A message as requests have it."""


@dataclass(frozen=True)
class Step:
    """A message; one of the assistant's that is to be learnt has the thought before it."""

    message: Said
    thought: str = ""


@dataclass(frozen=True)
class Exchange:
    """From a question to its answer."""

    kind: str
    steps: tuple[Step, ...]


def asked(content: str) -> Step:
    return Step({"role": "user", "content": content})


def answered(content: str, thought: str) -> Step:
    return Step({"role": "assistant", "content": content}, thought)


def called(calls: Sequence[tuple[Function, str]], thought: str) -> Step:
    made = [function.called_with(value, number) for number, (function, value) in enumerate(calls)]
    return Step({"role": "assistant", "content": None, "tool_calls": made}, thought)


def told(result: str, number: int = 0) -> Step:
    return Step({"role": "tool", "tool_call_id": f"call_{number}", "content": result})


READ = "I have what I need."
"""What is thought once results are there."""

TIMES_ASKS = (
    "What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b}", "{a} times {b}?",
    "How much is {a} times {b}?", "Calculate {a} * {b}.", "What is the product of {a} and {b}?", "{a}*{b}",
    "Multiply {a} and {b}.", "What is {a} multiplied by {b}?",
)  # fmt: skip
DIVIDED_ASKS = (
    "What is {a} / {b}?", "What is {a} divided by {b}?", "Divide {a} by {b}.", "{a} / {b}", "{a} divided by {b}?",
    "How much is {a} / {b}?", "Calculate {a} / {b}.", "{a}/{b}",
)  # fmt: skip
ASKS = {"+": ADD_ASKS, "-": SUBTRACT_ASKS, "*": TIMES_ASKS, "/": DIVIDED_ASKS}
LONG_ASKS = ("What is {e}?", "Calculate {e}.", "How much is {e}?", "Work out {e}.", "{e}", "{e} = ?", "Compute {e}.")
Number = int | float
SIGNS: dict[str, Callable[[Number, Number], Number]] = {"+": add, "-": sub, "*": mul, "/": truediv}
LONG: dict[str, Callable[[Number, Number, Number], Number]] = {
    "{a} + {b} + {c}": lambda a, b, c: a + b + c,
    "{a} + {b} - {c}": lambda a, b, c: a + b - c,
    "{a} * {b} + {c}": lambda a, b, c: a * b + c,
    "({a} + {b}) * {c}": lambda a, b, c: (a + b) * c,
    "{a} * ({b} - {c})": lambda a, b, c: a * (b - c),
    "{a} - {b} * {c}": lambda a, b, c: a - b * c,
}


def number(rng: Random) -> Number:
    """One to five digits, now and then with a fraction."""
    whole = rng.randint(0, 10 ** rng.choice((1, 2, 2, 3, 4, 5)) - 1)
    return float(f"{whole}.{rng.randint(1, 99)}") if rng.random() < 0.08 else whole


def calculation(split: Split, rng: Random) -> tuple[str, str, str]:
    """A question of ``split``, the expression that it asks for, and what a calculator says of it."""
    while True:
        a, b, c = number(rng), number(rng), number(rng)
        if rng.random() < 0.25:
            form = rng.choice(list(LONG))
            expression, found = form.format(a=a, b=b, c=c), LONG[form](a, b, c)
            ask = rng.choice(LONG_ASKS).format(e=expression)
        else:
            sign = rng.choice(list(SIGNS))
            if sign == "/" and b == 0:
                continue
            expression, found = f"{a} {sign} {b}", SIGNS[sign](a, b)
            ask = rng.choice(ASKS[sign]).format(a=a, b=b)
        if split_of(f"calculate|{expression}") == split:
            failing = rng.random() < 0.03
            return ask, expression, "error: too large" if failing else str(round(found, 4))


def calculator_says(found: str, rng: Random) -> str:
    if found.startswith("error"):
        return found
    form = rng.choices(("{}", '{{"result": {}}}', '{{"value": {}}}', "The result is {}", "= {}"), (6, 2, 1, 1, 1))[0]
    return form.format(found)


def sum_answer(expression: str, found: str) -> str:
    return failed(found) if found.startswith("error") else f"{expression} = {found}."


def failed(result: str) -> str:
    return f"The function failed: {result.removeprefix('error: ')}."


def calculate(offer: Offer, split: Split, rng: Random) -> Exchange:
    assert offer.calculator is not None
    ask, expression, found = calculation(split, rng)
    return Exchange("calculator", (
        asked(typed(ask, rng)),
        called([(offer.calculator, expression)], f"I need to work out {expression}."),
        told(calculator_says(found, rng)),
        answered(sum_answer(expression, found), READ),
    ))  # fmt: skip


WEATHER_ASKS = (
    "What is the weather in {c}?", "How is the weather in {c}?", "What's the weather like in {c}?",
    "What is the weather like in {c} today?", "Is it raining in {c}?", "Is it sunny in {c}?", "How warm is it in {c}?",
    "How cold is it in {c}?", "Tell me the weather in {c}.", "Weather in {c}?", "What is the temperature in {c}?",
    "Do I need an umbrella in {c}?", "I am going to {c}. How is the weather there?", "How hot is {c} today?",
    "Will I need a coat in {c}?", "What is the weather of {c}?", "How is the weather in {c} now?",
)  # fmt: skip
TWO_ASKS = (
    "What is the weather in {a} and {b}?", "What is the weather in {a} and in {b}?", "Is it warmer in {a} or in {b}?",
    "Compare the weather in {a} and {b}.", "How is the weather in {a} and in {b}?",
)  # fmt: skip
BOTH_ASKS = (
    "What is {e}, and how is the weather in {c}?", "What is {e} and what is the weather in {c}?",
    "Calculate {e} and tell me the weather in {c}.",
)  # fmt: skip
CITIES = (
    "Bern", "Zurich", "Geneva", "New York", "San Francisco", "Los Angeles", "Chicago", "Boston", "Seattle", "Toronto",
    "Sydney", "Melbourne", "Mumbai", "Delhi", "Shanghai", "Seoul", "Osaka", "Singapore", "Bangkok", "Hamburg", "Munich",
    "Frankfurt", "Milan", "Venice", "Naples", "Barcelona", "Porto", "Lyon", "Nice", "Bergen", "Kyiv", "Prague",
    "Budapest", "Brussels", "Amsterdam", "Istanbul", "Dubai", "Lima", "Bogota", "Cape Town", "Lagos", "Tunis",
)  # fmt: skip
SKIES = (
    "sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear", "dry", "wet", "hot", "cold", "warm",
    "mild", "humid", "partly cloudy", "overcast", "raining", "snowing", "misty", "freezing",
)  # fmt: skip


def city(split: Split, rng: Random) -> str:
    while True:
        kind = rng.randrange(10)
        if kind < 2:
            name = rng.choice(world.TOWNS).name
        elif kind < 4:
            name = rng.choice(list(world.COUNTRY_CAPITALS.values()))
        else:
            name = rng.choice(CITIES) if kind < 7 else invented_name(rng)
        if split_of(f"weather|{name}") == split:
            return name


def service_says(name: str, rng: Random) -> tuple[str, str]:
    """What a weather service answers about a city, and how to say that."""
    sky, degrees = rng.choice(SKIES), rng.randint(-15, 38)
    chance = rng.random()
    if chance < 0.05:
        result = rng.choice(("error: unknown city", "error: no such place", "error: timeout", "error: not found"))
        return result, failed(result)
    if chance < 0.25:
        return rng.choice((sky, f"{sky} in {name}")), f"It is {sky} in {name}."
    if chance < 0.65:
        form = rng.choice(("{s}, {t} degrees", "{t} degrees, {s}", "{t} degrees and {s}", "{s}, {t} °C",
                           "{s} and {t} degrees", "{t}°C, {s}", "{n}: {s}, {t} degrees"))  # fmt: skip
        result = form.format(s=sky, t=degrees, n=name)
    else:
        fields: list[tuple[str, object]] = [
            (rng.choice(("sky", "condition", "weather", "conditions", "description")), sky),
            (rng.choice(("temperature", "temp", "degrees", "temperature_c", "celsius")), degrees),
        ]
        rng.shuffle(fields)
        place = [(rng.choice(("city", "location", "place")), name)] if rng.random() < 0.5 else []
        result = json.dumps(dict([*place, *fields]))
    return result, f"It is {sky} in {name}, {degrees} degrees."


def ask_weather(offer: Offer, split: Split, rng: Random) -> Exchange:
    assert offer.weather is not None
    name = city(split, rng)
    result, answer = service_says(name, rng)
    return Exchange("weather", (
        asked(typed(rng.choice(WEATHER_ASKS).format(c=name), rng)),
        called([(offer.weather, name)], f"I need the weather in {name}."),
        told(result),
        answered(answer, READ),
    ))  # fmt: skip


def ask_weather_twice(offer: Offer, split: Split, rng: Random) -> Exchange:
    assert offer.weather is not None
    one, other = city(split, rng), city(split, rng)
    while other == one:
        other = city(split, rng)
    (first, this), (second, that) = service_says(one, rng), service_says(other, rng)
    return Exchange("several", (
        asked(typed(rng.choice(TWO_ASKS).format(a=one, b=other), rng)),
        called([(offer.weather, one), (offer.weather, other)], f"I need the weather in {one} and in {other}."),
        told(first), told(second, 1),
        answered(f"{this} {that}", READ),
    ))  # fmt: skip


def ask_both(offer: Offer, split: Split, rng: Random) -> Exchange:
    assert offer.calculator is not None
    assert offer.weather is not None
    name, (_, expression, found) = city(split, rng), calculation(split, rng)
    result, answer = service_says(name, rng)
    return Exchange("several", (
        asked(rng.choice(BOTH_ASKS).format(e=expression, c=name)),
        called(
            [(offer.calculator, expression), (offer.weather, name)],
            f"I need to work out {expression}, and the weather in {name}.",
        ),
        told(calculator_says(found, rng)), told(result, 1),
        answered(f"{sum_answer(expression, found)} {answer}", READ),
    ))  # fmt: skip


SUMS = ("add", "subtract", "multiply")
THOUGHTS = {
    "people": "This is about people.", "towns": "This is about a town.", "animals": "This is about an animal.",
    "things": "This is about a thing.", "capitals": "This is about a capital.", "opposites": "I need the opposite.",
    "calendar": "This is about the calendar.", "yes or no": "I need to check that.",
    "unknown": "I have not learnt that.",
    "add": "I need to add.", "subtract": "I need to subtract.", "multiply": "I need to multiply.",
    "compare": "I need to compare two numbers.", "next number": "I need to count on.", "count": "I need to count.",
    "sort": "I need to sort numbers.", "repeat": "I need to repeat that.",
    "reverse": "I need to turn the words around.",
    "capital letters": "I need capital letters.", "spell": "I need to spell a word.",
    "first and last": "I need to look at the words.", "translate": "I need to translate.",
    "memory": "I need to remember what was said.", "follow-up": "This follows from what was said before.",
    "reading": "I need to read that.", "json": "I need to write JSON.", "card": "I need to write a card.",
    "about": "I need to tell about that.", "story": "I need to tell a story.", "greeting": "I am spoken to.",
}  # fmt: skip


def ask_without(offer: Offer, split: Split, rng: Random) -> Exchange:
    """A question that no function fits, to be answered as if there were none."""
    if offer.weather is None and rng.random() < 0.15:
        ask = typed(rng.choice(WEATHER_ASKS).format(c=city(split, rng)), rng)
        return Exchange("no function", (asked(ask), answered(DONT_KNOW, THOUGHTS["unknown"])))
    skills = [name for name in SKILLS if offer.calculator is None or name not in SUMS]
    weights = [SKILLS[name].late_weight for name in skills]
    if offer.functions and offer.calculator is None and rng.random() < 0.25:
        skills, weights = list(SUMS), [1.0] * len(SUMS)
    question: Question = draw(rng.choices(skills, weights)[0], split, rng)
    *before, last = question.messages
    ask = casual(question, last["content"], rng)
    steps = (*(Step(dict(message)) for message in before), asked(ask))
    return Exchange("no function", (*steps, answered(question.answer, THOUGHTS[question.skill])))


def typed(ask: str, rng: Random) -> str:
    """As people type it."""
    chance = rng.random()
    if chance < 0.1:
        return ask.rstrip("?.")
    if chance < 0.16:
        return rng.choice(("Please tell me: ", "Hi! ", "Hello. ", "Quick question: ", "Can you help me? ")) + ask
    return ask


Maker = Callable[[Offer, Split, Random], Exchange]


def makers(offer: Offer) -> dict[Maker, float]:
    """What can be asked where ``offer`` is made, with its share."""
    found: dict[Maker, float] = {ask_without: 3.0}
    if offer.calculator:
        found[calculate] = 3.0
    if offer.weather:
        found |= {ask_weather: 3.0, ask_weather_twice: 0.8}
    if offer.calculator and offer.weather:
        found[ask_both] = 0.6
    return found


def exchange(offer: Offer, split: Split, rng: Random) -> Exchange:
    ways = makers(offer)
    return rng.choices(list(ways), list(ways.values()))[0](offer, split, rng)
