"""The tools of a chat request: what the model is shown, and what it may call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from lsv.request.params import SamplingParams
from lsv.request.structured import StructuredOutputsParams
from lsv_api.call_grammars import Schemas, either_grammar, forced_grammar, place, strict_grammar
from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.http.fields import check_spelling
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.options import ApiOptions
from lsv_api.records.requests import ChatRequest
from lsv_base.errors import BadRequest

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_FUNCTION = frozenset({"name", "description", "parameters", "strict"})
_RENAMED = ("input_schema", "inputSchema")
"""Names of ``parameters`` in other protocols."""
_MOST_FIELDS = 64
_CHOICES = ("none", "auto", "required")


_FORCED = FormOrigin("tools", instead="change them, or set tool_choice to auto")
_FORCED_FORM = FormOrigin("tools", instead=_FORCED.instead, written=True)
_STRICT = FormOrigin("tools", instead="change them, or leave strict out", written=True)
WriteEither = Callable[[Mapping[str, Any], "str | None"], "str | None"]


class Tools(msgspec.Struct, frozen=True):
    """The tools of one request, checked."""

    shown: Sequence[Mapping[str, Any]] | None = None
    """For the chat template, as the client wrote them."""

    callable: Mapping[str, Mapping[str, Any]] = {}
    """Functions that the answer may call, with the schemas of their arguments."""

    first_only: bool = False
    """Whether an answer has one call at most."""

    forced: Mapping[str, Any] | None = None
    """The JSON schema of an answer that must be calls; None where it need not."""

    forced_form: str | None = None
    """The grammar of an answer that must be calls, in the model's own form; None if ``forced`` is used instead."""

    strict: str | None = None
    """The grammar of an answer that may have calls, with arguments as their schemas ask; None where nothing asks."""

    either: WriteEither | None = None
    """Writes the grammar of an answer that is calls or JSON of a schema; None if calls have no grammar."""

    named: str | None = None
    """The function that the answer must call. Without a ``forced_form`` the answer is only its arguments.
    """

    followed: frozenset[str] = frozenset()
    """Functions whose calls must follow their schemas."""


def read_tools(body: ChatRequest, served: Served, options: ApiOptions) -> Tools:
    """Raises ``BadRequest`` for tools that are none, and for choices that can't be kept."""
    functions = check_tools(body.tools or (), options.limits.tools)
    choice, named = _read_choice(body.tool_choice, functions)
    if not functions:
        return Tools()
    if choice == "none":
        return Tools(None if options.exclude_tools else body.tools)
    first_only = body.parallel_tool_calls is False
    if choice == "required":
        return _must_call(body.tools or (), functions, served, named, first_only=first_only)
    if served.parsing.tools is None:
        raise Unsupported(
            f"tools are not available for this model: {served.parsing.why_no_tools or 'no parser reads its calls'}; "
            'start with --tool-call-parser, leave tools out, or set tool_choice to "none"',
            param="tools",
        )
    return _may_call(body.tools or (), functions, served, first_only=first_only)


def _must_call(
    tools: Sequence[Mapping[str, Any]], functions: Schemas, served: Served, named: str | None, *, first_only: bool
) -> Tools:
    """The tools of an answer that must call.

    The calls are in the model's own form if a grammar can make it follow the schemas, else in JSON.
    """
    chosen = dict(functions) if named is None else {named: functions[named]}
    forced = forced_schema(functions, named)
    places = {name: place for place, name in enumerate(functions)}
    schemas = {name: object_schema(schema, places[name]) for name, schema in chosen.items()}
    form, many = served.parsing.form, named is None and not first_only
    own = None if form is None else forced_grammar(form, schemas, served.client.tokenizer, many=many)
    return Tools(tools, functions, first_only, forced, own, named=named, followed=frozenset(chosen))


def _may_call(tools: Sequence[Mapping[str, Any]], functions: Schemas, served: Served, *, first_only: bool) -> Tools:
    """The tools of an answer that may call, with the grammar for calls of ``strict`` functions.

    If the form of calls has no such grammar, ``strict`` is ignored, because client libraries set it by themselves. The
    log says so at the start.
    """
    form, tokenizer = served.parsing.form, served.client.tokenizer
    if form is None:
        return Tools(tools, functions, first_only)
    asked = {tool["function"]["name"] for tool in tools if tool["function"].get("strict") is True}
    schemas = {
        name: object_schema(schema, index) if name in asked else {"type": "object"}
        for index, (name, schema) in enumerate(functions.items())
    }
    strict = strict_grammar(form, schemas, tokenizer, served.parsing.marks) if asked else None
    either = partial(either_grammar, form, schemas, tokenizer)
    return Tools(tools, functions, first_only, strict=strict, either=either, followed=frozenset(asked))


def check_tools(tools: Sequence[Mapping[str, Any]], most: int) -> dict[str, Mapping[str, Any]]:
    """The functions' names, and the schemas of their arguments. Raises ``BadRequest``."""
    if len(tools) > most:
        raise BadRequest(f"tools takes at most {most} tools (--api-max-tools), got {len(tools)}", param="tools")
    found: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        name, schema = _check_tool(tool, f"tools[{index}]")
        if name in found:
            raise BadRequest(f"tools[{index}].function.name: there are two tools called {name!r}", param="tools")
        found[name] = schema
    return found


def force_calls(params: SamplingParams, tools: Tools, origin: FormOrigin) -> tuple[SamplingParams, FormOrigin]:
    """Add the form of required or strict calls to the parameters; returns them and the form's origin.

    ``origin`` is the field that asks for the answer's own form, which applies to answers without calls. If the model
    may choose between calls and an answer, only a JSON form is combined with calls; any other form applies to the whole
    answer.
    """
    asked = params.structured_outputs
    if tools.forced_form is not None:
        form = StructuredOutputsParams(grammar=tools.forced_form)
        return params.replace(structured_outputs=form), _FORCED_FORM.of(tools.callable, tools.followed)
    if tools.forced is not None:
        with _FORCED.naming():
            form = StructuredOutputsParams(json=dict(tools.forced))
        return params.replace(structured_outputs=form), _FORCED.of(tools.callable, tools.followed)
    if asked is None:
        if tools.strict is None:
            return params, origin
        form = StructuredOutputsParams(grammar=tools.strict)
        return params.replace(structured_outputs=form), _STRICT.of(tools.callable, tools.followed)
    schema = None if tools.either is None else _schema_of(asked)
    if tools.either is None or schema is None:
        return params, origin
    grammar = tools.either(schema, asked.whitespace_pattern)
    if grammar is None:
        return params, origin
    form = StructuredOutputsParams(grammar=grammar, backend=asked.backend)
    instead = "simplify it, or send it without tools"
    return params.replace(structured_outputs=form), FormOrigin(origin.field, instead=instead, written=True)


def _schema_of(asked: StructuredOutputsParams) -> dict[str, Any] | None:
    """The JSON schema of a form; None for other forms, and for invalid JSON, which the engine refuses."""
    if asked.form not in ("json", "json_object"):
        return None
    try:
        schema = json.loads(asked.text)
    except (ValueError, RecursionError):
        return None
    return schema if isinstance(schema, dict) else None


def forced_schema(functions: Schemas, name: str | None) -> dict[str, Any]:
    """The JSON schema of an answer that is only calls.

    With ``name``, the answer is the arguments of this function, else a list of one or more calls of any function.
    """
    schemas = {one: object_schema(schema, index) for index, (one, schema) in enumerate(functions.items())}
    if name is not None:
        return dict(schemas[name])
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "parameters": place(schema, f"#/items/anyOf/{index}/properties/parameters"),
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for index, (name, schema) in enumerate(schemas.items())
    ]
    return {"type": "array", "minItems": 1, "items": {"anyOf": calls}}


def object_schema(schema: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The schema of a function's arguments, restricted to objects.

    Raises ``BadRequest`` for a schema that no object satisfies; ``index`` is the function's place in ``tools``.
    """
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise BadRequest(
            f"tools[{index}].function.parameters.type must be object, got {kinds!r:.64}",
            param=f"tools[{index}].function.parameters",
        )
    return {**schema, "type": "object"}


def _check_tool(tool: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    if tool.get("type") != "function":
        raise BadRequest(f'{where}.type must be "function"', param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"{where}.function must be an object with a name", param=f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"{where}.function.name must be at most 128 letters, digits and any of _ . : / -",
            param=f"{where}.function.name",
        )
    if len(function) > _MOST_FIELDS:
        raise BadRequest(
            f"{where}.function has {len(function)} fields, over the limit of {_MOST_FIELDS}", param=f"{where}.function"
        )
    for field in function:
        if field in _RENAMED:
            raise Unsupported(
                f"{where}.function.{field} is called parameters on this server", param=f"{where}.function.{field}"
            )
        if field not in _FUNCTION:
            check_spelling(field, _FUNCTION, f"{where}.function.")
    if tool.get("strict"):
        raise Unsupported(f"{where}.strict is called function.strict on this server", param=f"{where}.strict")
    for field, kind, noun in (("description", str, "a string"), ("parameters", dict, "a JSON schema: an object")):
        if not isinstance(function.get(field), kind | None):
            raise BadRequest(f"{where}.function.{field} must be {noun}", param=f"{where}.function.{field}")
    return name, function.get("parameters") or {"type": "object", "properties": {}}


def _read_choice(choice: str | Mapping[str, Any] | None, functions: Mapping[str, Any]) -> tuple[str, str | None]:
    """``"none"``, ``"auto"`` or ``"required"``, and of which function a call is required where it is named."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise BadRequest(
                f"tool_choice must be one of {', '.join(_CHOICES)}, or name a function, got {choice[:64]!r}",
                param="tool_choice",
            )
        if choice == "required" and not functions:
            raise BadRequest("tool_choice is required, and there are no tools", param="tool_choice")
        return choice, None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise BadRequest(
            'tool_choice must be a word, or {"type": "function", "function": {"name": …}}', param="tool_choice"
        )
    if name not in functions:
        raise BadRequest(f"tool_choice names {name[:64]!r}, which is not among tools", param="tool_choice")
    return "required", name
