"""The tools that the page offers to models, and runs: a calculator, and a weather service that makes the weather up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from lsv_base.errors import BadRequest, LsvError
from lsv_webui.chat.arithmetic import calculate
from lsv_webui.chat.conversation import ToolCall

ROUNDS = 4
"""Answers with calls that may follow each other; after them the model is not asked again."""

_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")


@dataclass(frozen=True)
class Tool:
    """A function with one parameter, a string; ``run`` raises ``LsvError`` for a value it can't digest."""

    name: str
    label: str
    description: str
    parameter: str
    run: Callable[[str], str]

    def as_json(self) -> dict[str, Any]:
        """As requests have it in ``tools``."""
        schema = {
            "type": "object",
            "properties": {self.parameter: {"type": "string"}},
            "required": [self.parameter],
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def make_weather(city: str) -> str:
    """The same for a city each time."""
    if not city.strip():
        raise BadRequest("unknown city")
    drawn = sha256(city.strip().lower().encode()).digest()
    return f"{_SKIES[drawn[0] % len(_SKIES)]}, {drawn[1] % 30} degrees"


TOOLS = (
    Tool("calculate", "Calculator", "The value of an arithmetic expression", "expression", calculate),
    Tool("get_weather", "Weather (made up)", "The weather of a city", "city", make_weather),
)


def offered(names: Iterable[str]) -> list[dict[str, Any]]:
    """The chosen tools as requests have them."""
    chosen = set(names)
    return [tool.as_json() for tool in TOOLS if tool.name in chosen]


def run(calls: Sequence[ToolCall], names: Iterable[str]) -> None:
    """Run the calls of an answer and note their results; what goes wrong is the result, for the model to read."""
    chosen = {tool.name: tool for tool in TOOLS if tool.name in set(names)}
    for number, call in enumerate(calls):
        call.id = call.id or f"call_{number}"
        try:
            call.result = _run(chosen, call)
        except LsvError as error:
            call.result = f"error: {error.message}"


def _run(tools: dict[str, Tool], call: ToolCall) -> str:
    if call.name not in tools:
        raise BadRequest(f"no tool is called {call.name}")
    tool = tools[call.name]
    try:
        value = json.loads(call.arguments)[tool.parameter]
    except (ValueError, KeyError, TypeError):
        raise BadRequest(f"the argument {tool.parameter} is missing") from None
    return tool.run(str(value))
