"""The tools of a response: functions, tools that take a text, and namespaces that group functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from lsv_api.http.failures import Unsupported
from lsv_api.responding.items import INPUT, shown_name
from lsv_base.errors import BadRequest

log = logging.getLogger(__name__)

_EMPTY: tuple[Any, ...] = (None, [], {}, "")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "async": (None, False),
    "allowed_callers": (None, [], ["direct"]),
    "output_schema": _EMPTY,
}
"""Fields of functions that this server can't honour, with their neutral values."""
_DEFERRED = "defer_loading"
"""Says of a function that the model finds it by ``tool_search``."""
_CALLABLE = ("function", "custom")
"""Types of tools that an answer may call."""
_DECLARED = (*_CALLABLE, "namespace")
_OFFERED = ("web_search", "web_search_preview", "image_generation", "tool_search")
"""Tools of OpenAI's servers that agents offer beside their own, whether or not the server has them."""


class Home(NamedTuple):
    """What a request calls a function whose name the model sees with its namespace."""

    namespace: str
    name: str


class DeclaredTools(NamedTuple):
    """The tools of a request as a chat declares them."""

    functions: list[dict[str, Any]]
    choice: str | dict[str, Any] | None
    """The choice for a chat."""


def read_tools(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] | None) -> DeclaredTools:
    """The tools that the model is shown. Raises ``BadRequest`` for tools and choices that can't be kept."""
    functions = [_read(tool, where) for tool, where in _callable_tools(tools)]
    allowed, chosen = _read_choice(choice)
    if allowed is not None:
        functions = _keep_allowed(functions, allowed)
    return DeclaredTools(functions, chosen)


def kept_tools(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tools that the server keeps: hosted tools are dropped if the agent also has tools of its own."""
    left_out = _left_out(tools)
    return [tool for tool in tools if tool.get("type") not in left_out]


def _left_out(tools: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """The types of tools that are left out: none, where a request has no tools of its own and asks for just these."""
    return _OFFERED if any(tool.get("type") in _DECLARED for tool in tools) else ()


def custom_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The tools that take a text instead of arguments."""
    return frozenset(str(tool.get("name")) for tool in tools if tool.get("type") == "custom")


def find_homes(tools: Sequence[Mapping[str, Any]]) -> dict[str, Home]:
    """The functions of namespaces, by the names that the model sees."""
    return {
        shown_name(home.namespace, home.name): home
        for space in tools
        if space.get("type") == "namespace"
        for tool in space.get("tools") or ()
        for home in (Home(str(space.get("name")), str(tool.get("name"))),)
    }


def _callable_tools(tools: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """The tools that the model may call, each with its place in the request."""
    left_out = _left_out(tools)
    found: list[tuple[Mapping[str, Any], str]] = []
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind in left_out:
            _report_left_out(str(kind))
        elif kind == "namespace":
            found += _functions_of(tool, f"tools[{index}]")
        else:
            found.append((tool, f"tools[{index}]"))
    return found


@cache
def _report_left_out(kind: str) -> None:
    """Once for each kind: an agent declares the same tools in every request."""
    log.info("tools of type %s are left out: this server has none of its own", kind)


def _functions_of(space: Mapping[str, Any], where: str) -> list[tuple[Mapping[str, Any], str]]:
    """The functions of a namespace as the model sees them. The first one says what the namespace is for."""
    name, tools = space.get("name"), space.get("tools")
    if not isinstance(name, str) or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequest(f"{where} must have a name and a list of tools", param=where)
    found: list[tuple[Mapping[str, Any], str]] = []
    for index, tool in enumerate(tools):
        place = f"{where}.tools[{index}]"
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise BadRequest(f"{place} must be a function with a name", param=place)
        described = [space.get("description") if index == 0 else None, tool.get("description")]
        text = "\n\n".join(filter(None, map(_text, described)))
        found.append(({**tool, "name": shown_name(name, tool["name"]), "description": text or None}, place))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "custom":
        return _read_custom(tool, where)
    if kind != "function":
        raise Unsupported(
            f"{where}.type {str(kind)[:64]!r} is not available on this server, which has no tools of its own; declare "
            "a function and call the tool yourself",
            param=f"{where}.type",
        )
    for name, neutral in _NEUTRAL.items():
        if tool.get(name) not in neutral:
            raise Unsupported(f"{where}.{name} is not available on this server; leave it out", param=f"{where}.{name}")
    function = {
        name: value
        for name, value in tool.items()
        if name not in ("type", _DEFERRED) and name not in _NEUTRAL and value is not None
    }
    return {"type": "function", "function": function}


def _read_custom(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The function that stands for a tool that takes a text."""
    form = tool.get("format")
    if form not in _EMPTY and not (isinstance(form, dict) and form.get("type") == "text"):
        raise Unsupported(
            f"{where}.format: inputs can't be held to a grammar on this server; leave it out", param=f"{where}.format"
        )
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    given = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    return {"type": "function", "function": {**given, "parameters": schema}}


def _keep_allowed(tools: list[dict[str, Any]], allowed: Sequence[str]) -> list[dict[str, Any]]:
    names = [tool["function"].get("name") for tool in tools]
    for name in allowed:
        if name not in names:
            raise BadRequest(f"tool_choice allows {name[:64]!r}, which is not among tools", param="tool_choice.tools")
    return [tool for tool, name in zip(tools, names, strict=True) if name in allowed]


def _read_choice(choice: str | Mapping[str, Any] | None) -> tuple[list[str] | None, str | dict[str, Any] | None]:
    """The names of the only functions that may be called, if they are limited, and the choice for a chat."""
    if choice is None or isinstance(choice, str):
        return None, choice
    kind, name = choice.get("type"), _called(choice)
    if name is not None:
        return None, {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        mode = choice.get("mode", "auto")
        check_choice(str(mode), ("auto", "required"), "tool_choice.mode")
        return [_allowed_name(tool, index) for index, tool in enumerate(choice["tools"])], mode
    raise Unsupported(
        f"tool_choice of type {str(kind)[:64]!r} is not available on this server; use none, auto, required, "
        '{"type": "function", "name": …} or {"type": "allowed_tools", "mode": …, "tools": […]}',
        param="tool_choice",
    )


def _called(tool: Mapping[str, Any]) -> str | None:
    """The name of a callable tool as the model sees it."""
    name, namespace = tool.get("name"), tool.get("namespace")
    if tool.get("type") not in _CALLABLE or not isinstance(name, str):
        return None
    return shown_name(namespace if isinstance(namespace, str) else None, name)


def _allowed_name(tool: Any, index: int) -> str:
    where = f"tool_choice.tools[{index}]"
    name = _called(tool) if isinstance(tool, dict) else None
    if name is None:
        raise BadRequest(f'{where} must be {{"type": "function", "name": …}}', param=where)
    return name


def check_choice(value: str | None, choices: Sequence[str], name: str) -> None:
    if value is not None and value not in choices:
        raise BadRequest(f"{name} must be one of {', '.join(choices)}, got {value[:64]!r}", param=name)
