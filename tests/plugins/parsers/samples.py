"""Sample answers of families and their meaning, by the name of the parser."""

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
    typed: bool = True
    """Whether empty lists, objects and null can be distinguished from an empty text."""


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


def dsml(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{text_or_json(value)}</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{rows}</｜DSML｜invoke>'


def keyed(quote: str) -> Callable[[str, dict[str, Any]], str]:
    def value(given: Any) -> str:
        match given:
            case str():
                return f"{quote}{given}{quote}"
            case dict():
                return "{" + ",".join(f"{quote}{key}{quote}:{value(one)}" for key, one in given.items()) + "}"
            case list():
                return f"[{','.join(map(value, given))}]"
        return dump(given)

    return lambda name, given: f"call:{name}{{{','.join(f'{key}:{value(one)}' for key, one in given.items())}}}"


def minicpm5(name: str, arguments: dict[str, Any]) -> str:
    def value(given: Any) -> str:
        if isinstance(given, str) and set(given) & set("<&\n"):
            return f"<![CDATA[{given}]]>"
        return str(given)

    rows = "".join(f'<param name="{key}">{value(given)}</param>' for key, given in arguments.items())
    return f'<function name="{name}">{rows}</function>'


def minimax_m3(name: str, arguments: dict[str, Any]) -> str:
    mark = "]<]minimax[>["

    def value(given: Any) -> str:
        if isinstance(given, dict):
            return "".join(f"{mark}<{key}>{value(one)}{mark}</{key}>" for key, one in given.items())
        if isinstance(given, list):
            return "".join(f"{mark}<item>{value(one)}{mark}</item>" for one in given)
        return text_or_json(given)

    return f'{mark}<invoke name="{name}">{value(arguments)}{mark}</invoke>\n'


def kimi_k3(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f'<|open|>argument key="{key}" type="{"string" if isinstance(value, str) else "number"}"<|sep|>'
        f"{text_or_json(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{rows}<|close|>call<|sep|>'


def atem(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f'<atem:parameter name="{key}">{text_or_json(value)}</atem:parameter>\n' for key, value in arguments.items()
    )
    return f'<atem:function_calls>\n<atem:invoke name="{name}">\n{rows}</atem:invoke>\n</atem:function_calls>'


def hy_v3(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n"
        f"<arg_value:opensource>{text_or_json(value)}</arg_value:opensource>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call:opensource>{name}<tool_sep:opensource>\n{rows}</tool_call:opensource>"


def k2_horizon(name: str, arguments: dict[str, Any]) -> str:
    rows = "".join(
        f"<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_type>{'string' if isinstance(value, str) else 'any'}</ifm|arg_type>"
        f"<ifm|arg_value>{text_or_json(value)}</ifm|arg_value>"
        for key, value in arguments.items()
    )
    return f"<ifm|tool_call>{name}{rows}</ifm|tool_call>"


def plamo3(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        f"{dump(arguments)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    )


def pythonic(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def inkling(name: str, arguments: dict[str, Any]) -> str:
    call = dump({"name": name, "args": arguments})
    return f"<|message_model|>{name}<|content_invoke_tool_json|>{call}<|end_message|>"


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
    "inkling": Family(inkling, mark="<|content_invoke_tool_json|>"),
    "deepseek_v32": Family(
        dsml, ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"), "\n", mark="<｜DSML｜function_calls>"
    ),
    "deepseek_v4": Family(
        dsml, ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"), "\n", mark="<｜DSML｜tool_calls>"
    ),
    "gemma4": Family(
        lambda name, arguments: "<|tool_call>" + keyed('<|"|>')(name, arguments) + "<tool_call|>", mark="<|tool_call>"
    ),
    "functiongemma": Family(
        lambda name, arguments: f"<start_function_call>{keyed('<escape>')(name, arguments)}<end_function_call>",
        mark="<start_function_call>",
    ),
    "cohere_command4": Family(
        lambda name, arguments: dump({"tool_call_id": "0", "tool_name": name, "parameters": arguments}),
        ("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"), ",\n    ", mark="<|START_ACTION|>",
    ),
    "lfm2": Family(pythonic, ("<|tool_call_start|>[", "]<|tool_call_end|>"), ", ", mark="<|tool_call_start|>"),
    "olmo3": Family(pythonic, ("<function_calls>", "</function_calls>"), "\n", mark="<function_calls>"),
    "nemotron_nano_v2": Family(json_call(), ("<TOOLCALL>[", "]</TOOLCALL>"), ", ", mark="<TOOLCALL>"),
    "longcat": Family(
        lambda name, arguments: f"<longcat_tool_call>{json_call()(name, arguments)}</longcat_tool_call>",
        mark="<longcat_tool_call>",
    ),
    "apriel": _LIST,
    "gigachat3": Family(
        lambda name, arguments: f"<|function_call|>{json_call()(name, arguments)}<|message_sep|>\n\n",
        mark="<|function_call|>",
    ),
    "apertus": Family(
        lambda name, arguments: dump({name: arguments}), ("<|tools_prefix|>[", "]<|tools_suffix|>"), ", ",
        mark="<|tools_prefix|>",
    ),
    "hy_v3": Family(
        hy_v3, ("<tool_calls:opensource>\n", "\n</tool_calls:opensource>"), "\n", mark="<tool_call:opensource>"
    ),
    "solar_open": Family(
        lambda name, arguments: (
            f"<|tool_call:begin|>a1<|tool_call:name|>{name}<|tool_call:args|>{dump(arguments)}<|tool_call:end|>"
        ),
        ("<|tool_calls|>", "<|calls|>"), mark="<|tool_call:begin|>",
    ),
    "functionary_v3_1": Family(
        lambda name, arguments: f"<function={name}>{dump(arguments)}</function>", mark="<function="
    ),
    "functionary_v3_2": Family(
        lambda name, arguments: f">>>{name}\n{dump(arguments)}", text_after=False, mark=">>>get"
    ),
    "minicpm5": Family(minicpm5, between="\n", mark='<function name="'),
    "minimax_m3": Family(
        minimax_m3, ("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"), mark="]<]minimax[>[<tool_call>",
        typed=False,
    ),
    "kimi_k3": Family(kimi_k3, ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), mark="<|open|>tools<|sep|>"),
    "muse_glimmer": Family(atem, mark="<atem:function_calls>"),
    "plamo3": Family(
        plamo3, ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        mark="<|plamo:begin_tool_name:plamo|>",
    ),
    "k2_horizon": Family(k2_horizon, ("<ifm|tool_calls>", "</ifm|tool_calls>"), "\n", mark="<ifm|tool_call>"),
    "k2_horizon json": Family(
        lambda name, arguments: f"<ifm|tool_call>{json_call()(name, arguments)}</ifm|tool_call>",
        ("<ifm|tool_calls>", "</ifm|tool_calls>"), mark="<ifm|tool_call>",
    ),
}  # fmt: skip


def written(family: Family, *calls: Call) -> str:
    return family.around[0] + family.between.join(family.call(*call) for call in calls) + family.around[1]
