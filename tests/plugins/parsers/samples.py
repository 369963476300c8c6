"""Answers as families write them, and what they say: by the name of the parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "hourly": {"type": "boolean"},
        "options": {"type": "object"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
TOOLS: dict[str, dict[str, Any]] = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}}

Call = tuple[str, dict[str, Any]]

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {"city": "Bern"},
    "several": {"city": "Bern", "days": 3, "hourly": True},
    "empty": {},
    "nested": {"city": "Bern", "options": {"a": [1, {"b": [None, -2.5e3]}], "c": {}}},
    "unicode": {"city": "Zürich 東京 🌧"},
    "escapes": {"city": 'a "quoted" \\ back\\slash \t tab'},
    "lines": {"city": "first\nsecond\n\nthird"},
    "brackets": {"city": "}]){[( ,;: ]} </x> <tool"},
    "null": {"city": "Bern", "note": None},
}


class Family(NamedTuple):
    """How a family writes."""

    call: Callable[[str, dict[str, Any]], str]
    """One call with its own marks."""
    around: tuple[str, str] = ("", "")
    """Marks around all calls."""
    between: str = ""
    text_before: bool = True
    """Whether text may stand before calls."""
    text_after: bool = True
    mark: str = ""
    """One that begins a call, to be written amid text."""


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_call(key: str = "arguments") -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: dump({"name": name, key: arguments})


def tagged(begin: str, end: str) -> Callable[[str, dict[str, Any]], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        rows = "".join(f"<parameter={key}>\n{text_or_json(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"{begin}\n<function={name}>\n{rows}</function>\n{end}"

    return write


def text_or_json(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def glm(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{text_or_json(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{rows}</tool_call>"


def minimax_m2(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(f'<parameter name="{key}">{text_or_json(value)}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{rows}</invoke>'


def pythonic(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def harmony(name: str, arguments: dict[str, Any]) -> str:
    head = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{head}{dump(arguments)}<|call|>"


_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_HERMES = Family(
    lambda name, arguments: f"<tool_call>\n{json_call()(name, arguments)}\n</tool_call>",
    between="\n", mark="<tool_call>",
)  # fmt: skip
_LIST = Family(json_call(), ("<tool_calls>[", "]</tool_calls>"), ", ", mark="<tool_calls>")

FAMILIES: dict[str, Family] = {
    "hermes": _HERMES,
    "mistral": Family(json_call(), ("[TOOL_CALLS] [", "]"), ", ", text_after=False, mark="[TOOL_CALLS]"),
    "mistral headed": Family(
        lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dump(arguments)}", text_after=False, mark="[TOOL_CALLS]"
    ),
    "mistral bare": Family(
        lambda name, arguments: f"[TOOL_CALLS]{name}{dump(arguments)}", text_after=False, mark="[TOOL_CALLS]"
    ),
    "llama3_json": Family(json_call("parameters"), between="; ", text_before=False, text_after=False, mark='{"name'),
    "llama3_json tagged": Family(
        json_call("parameters"), ("<|python_tag|>", ""), "; ", text_after=False, mark="<|python_tag|>"
    ),
    "llama4_pythonic": Family(
        pythonic, ("<|python_start|>[", "]<|python_end|>"), ", ", mark="<|python_start|>"
    ),
    "pythonic": Family(pythonic, ("[", "]"), ", ", text_before=False, text_after=False, mark="[get"),
    "qwen3_coder": Family(tagged("<tool_call>", "</tool_call>"), between="\n", mark="<tool_call>"),
    "deepseek_v3": Family(
        lambda name, arguments: (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(arguments)}\n```<｜tool▁call▁end｜>"
        ),
        _SECTION, "\n", mark="<｜tool▁call▁begin｜>",
    ),
    "deepseek_v31": Family(
        lambda name, arguments: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(arguments)}<｜tool▁call▁end｜>",
        _SECTION, mark="<｜tool▁call▁begin｜>",
    ),
    "glm45": Family(glm, between="\n", mark="<tool_call>"),
    "granite": Family(json_call(), ("<|tool_call|>[", "]"), ", ", text_after=False, mark="<|tool_call|>"),
    "internlm": Family(
        lambda name, arguments: f"<|action_start|><|plugin|>\n{json_call('parameters')(name, arguments)}<|action_end|>",
        mark="<|action_start|><|plugin|>",
    ),
    "jamba": _LIST,
    "hunyuan_a13b": _LIST,
    "minimax": Family(json_call(), ("<tool_calls>\n", "\n</tool_calls>"), "\n", mark="<tool_calls>"),
    "minimax_m2": Family(
        minimax_m2, ("<minimax:tool_call>\n", "\n</minimax:tool_call>"), "\n", mark="<minimax:tool_call>"
    ),
    "phi4_mini_json": Family(json_call(), ("functools[", "]"), ", ", text_after=False, mark="functools"),
    "kimi_k2": Family(
        lambda name, arguments: (
            f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dump(arguments)}<|tool_call_end|>"
        ),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), mark="<|tool_call_begin|>",
    ),
    "seed_oss": Family(tagged("<seed:tool_call>", "</seed:tool_call>"), between="\n", mark="<seed:tool_call>"),
    "xlam": Family(json_call(), ("[", "]"), ", ", text_before=False, text_after=False, mark="[{"),
    "json": Family(json_call("parameters"), ("[", "]"), ", ", text_before=False, text_after=False, mark="[{"),
    "xlam fenced": Family(json_call(), ("```json\n[", "]\n```"), ", ", mark="```json"),
    "openai": Family(harmony, mark="<|channel|>"),
}  # fmt: skip


def written(family: Family, *calls: Call) -> str:
    return family.around[0] + family.between.join(family.call(*call) for call in calls) + family.around[1]
