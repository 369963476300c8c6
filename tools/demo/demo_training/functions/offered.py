"""Functions that a request may offer: calculators and weather services under many names, and some that never fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from demo_training.names import invented_word


@dataclass(frozen=True)
class Function:
    """A function with its required parameters, all strings; ``extra`` names one that may be left out."""

    name: str
    parameters: tuple[str, ...]
    description: str
    extra: str = ""

    def as_tool(self) -> dict[str, Any]:
        """As a request has it in ``tools``."""
        names = (*self.parameters, *((self.extra,) if self.extra else ()))
        schema = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": list(self.parameters),
        }
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": schema}}

    def called_with(self, value: str, number: int = 0) -> dict[str, Any]:
        """A call that gives ``value`` to the parameter, as a message has it in ``tool_calls``."""
        called = {"name": self.name, "arguments": {self.parameters[0]: value}}
        return {"id": f"call_{number}", "type": "function", "function": called}


@dataclass(frozen=True)
class Offer:
    """What is offered in a conversation, in the order in which the request has it."""

    functions: tuple[Function, ...]
    calculator: Function | None = None
    weather: Function | None = None

    def as_tools(self) -> list[dict[str, Any]] | None:
        return [function.as_tool() for function in self.functions] or None


CALCULATOR = Function("calculate", ("expression",), "The value of an arithmetic expression")
WEATHER = Function("get_weather", ("city",), "The weather of a city")
"""As the documentation and the web page have them."""

CALCULATORS = (
    "calculate", "calculator", "compute", "evaluate", "calc", "math", "do_math", "solve", "work_out", "arithmetic",
    "eval_expression", "get_result",
)  # fmt: skip
EXPRESSIONS = ("expression", "formula", "calculation", "input", "expr", "sum", "problem", "text")
CALCULATOR_TOLD = (
    "The value of an arithmetic expression", "Calculate an arithmetic expression", "Evaluate a math expression",
    "A calculator", "Works out sums and products", "Do arithmetic", "Calculates", "Computes the value of a formula",
)  # fmt: skip
SERVICES = (
    "get_weather", "weather", "current_weather", "get_current_weather", "weather_in", "fetch_weather", "forecast",
    "get_forecast", "look_up_weather", "weather_report", "temperature", "get_temperature",
)  # fmt: skip
PLACES = ("city", "location", "place", "town", "name", "where", "city_name", "area")
SERVICE_TOLD = (
    "The weather of a city", "Get the current weather", "The weather in a place", "Get the weather in a given city",
    "Tells how the weather is", "The current temperature and sky", "Weather of a town", "Looks up the weather",
)  # fmt: skip
EXTRAS = ("unit", "units", "precision", "language", "format")

OTHERS = (
    Function("send_mail", ("to", "text"), "Send a message"),
    Function("search", ("query",), "Search the web"),
    Function("get_time", ("zone",), "The time of day"),
    Function("play_music", ("song",), "Play a song"),
    Function("open_door", ("room",), "Open a door"),
    Function("book_table", ("restaurant", "time"), "Book a table"),
    Function("set_timer", ("minutes",), "Set a timer"),
    Function("read_file", ("path",), "Read a file"),
    Function("buy_ticket", ("train",), "Buy a ticket"),
    Function("call_taxi", ("street",), "Call a taxi"),
    Function("turn_on_light", ("room",), "Turn on a light"),
    Function("stock_price", ("symbol",), "The price of a stock"),
)


def calculator(rng: Random) -> Function:
    return CALCULATOR if rng.random() < 0.2 else _named(CALCULATORS, EXPRESSIONS, CALCULATOR_TOLD, rng)


def weather(rng: Random) -> Function:
    return WEATHER if rng.random() < 0.2 else _named(SERVICES, PLACES, SERVICE_TOLD, rng)


def _named(names: Sequence[str], parameters: Sequence[str], told: Sequence[str], rng: Random) -> Function:
    """Names are sometimes invented; then the description says what the function does."""
    invented = rng.random() < 0.1
    name = f"{invented_word(rng)}{rng.choice(('', '_' + invented_word(rng)))}" if invented else rng.choice(names)
    parameter = invented_word(rng) if rng.random() < 0.06 else rng.choice(parameters)
    description = "" if not invented and rng.random() < 0.2 else rng.choice(told) + rng.choice(("", "."))
    return Function(name, (parameter,), description, rng.choice(EXTRAS) if rng.random() < 0.15 else "")


def offer(rng: Random) -> Offer:
    """Mostly both kinds, sometimes one or neither, sometimes functions beside them that never fit."""
    chance = rng.random()
    reckons = calculator(rng) if chance < 0.8 else None
    tells = weather(rng) if chance < 0.6 or chance >= 0.8 else None
    if chance >= 0.96:
        tells = None
    others = rng.sample(OTHERS, rng.choices((0, 1, 2), (5, 3, 2))[0] or (reckons is tells is None))
    functions = [function for function in (reckons, tells) if function] + others
    rng.shuffle(functions)
    return Offer(tuple(functions), reckons, tells)
