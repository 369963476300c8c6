"""The OpenAPI 3.1 description of the routes, made from their records."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

from lsv.media.content_parts import KNOWN
from lsv.request.params import Range, SamplingParams
from lsv_api.contract import Route
from lsv_api.http.sse import EVENTS
from lsv_api.records.responses import ErrorResponse

_NOT_WORD = re.compile(r"\W+")
_CAPTURE = re.compile(r"<(\w+)(?::\w+)?>")
_ID = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_PROMPTS = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
    _IDS,
    {"type": "array", "items": _IDS, "minItems": 1},
]
_INPUTS = ("input", "messages")
_EITHER: Mapping[str, tuple[str, ...]] = {
    "TokenizeRequest": ("prompt", "messages"),
    "EmbeddingRequest": _INPUTS,
    "PoolingRequest": _INPUTS,
    "ClassifyRequest": _INPUTS,
}
"""Records of which one of two fields is required."""
_RANGES: Mapping[str, Range] = {
    name: allowed
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for allowed in getattr(hint, "__metadata__", ())
}


def describe_api(
    routes: Sequence[Route], *, version: str, root_path: str, open_routes: Collection[str]
) -> dict[str, Any]:
    """The whole document as plain data."""
    records = {
        record
        for route in routes
        for record in (route.request, route.response, route.verbose, route.error, *_parts(route.streams))
        if record is not None
    }
    ordered = sorted(records | {ErrorResponse}, key=lambda record: record.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    for route in routes:
        if route.request is not None:
            _refine(components[route.request.__name__]["properties"])
    components["ContentPart"]["properties"]["type"]["enum"] = KNOWN
    for name, fields in _EITHER.items():
        if name in components:
            components[name]["anyOf"] = [{"required": [field]} for field in fields]
    by_record = dict(zip(ordered, schemas, strict=True))
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "lsv", "version": version, "summary": "OpenAI-compatible inference server"},
        "servers": [{"url": root_path or "/"}],
        "paths": {},
        "components": {"schemas": components},
    }
    if "never" not in open_routes:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for route in routes:
        path = document["paths"].setdefault(_CAPTURE.sub(r"{\1}", route.path), {})
        path[route.method.lower()] = _operation(route, by_record, open_routes)
    return document


def _parts(record: Any) -> tuple[Any, ...]:
    """The records of a union, or the one that it is."""
    return get_args(record) or (record,)


def _refine(properties: dict[str, Any]) -> None:
    """Say of a request's fields what their types do not: the ranges of sampling parameters, which are passed on under
    the same name; that token ids are not negative; and that the items of a prompt are all of one kind.
    """
    for name, field in properties.items():
        kinds = field.get("anyOf", [field])
        low, high = _RANGES.get(name, (None, None))
        for kind in kinds:
            if low is not None and kind.get("type") in ("integer", "number"):
                kind |= {"minimum": low, "maximum": high}
            if kind.get("items") == {"type": "integer"}:
                kind["items"] = _ID
        if any("anyOf" in kind.get("items", {}) for kind in kinds):
            field["anyOf"] = _PROMPTS


def _operation(route: Route, schemas: dict[type, Any], open_routes: Collection[str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _NOT_WORD.sub("_", f"{route.method} {route.path}").strip("_").lower(),
        "responses": {
            "200": {"description": "Success", "content": _content(route, schemas)},
            "default": {
                "description": "Error",
                "content": {"application/json": {"schema": schemas[route.error or ErrorResponse]}},
            },
        },
    }
    names = _CAPTURE.findall(route.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.request:
        kind = "multipart/form-data" if route.form else "application/json"
        body = {kind: {"schema": schemas[route.request]}}
        operation["requestBody"] = {"required": True, "content": body}
    if route.open not in open_routes:
        operation["security"] = [{"key": []}]
    return operation


def _content(route: Route, schemas: dict[type, Any]) -> dict[str, Any]:
    if route.response is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = schemas[route.response]
    if route.verbose:
        schema = {"oneOf": [schema, schemas[route.verbose]]}
    content = {"application/json": {"schema": schema}}
    if route.streams:
        kinds = [schemas[record] for record in _parts(route.streams)]
        stream = (
            _event(*kinds, schemas[route.error or ErrorResponse])
            if route.stream_type == EVENTS.content_type
            else {"anyOf": kinds}
        )
        content[route.stream_type] = {"schema": stream}
    return content


def _event(*kinds: Any) -> dict[str, Any]:
    """A server-sent event: its data are JSON of one of these kinds, and ``[DONE]`` in the last one."""
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": list(kinds)}}
    data = {"anyOf": [json, {"const": "[DONE]"}]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}
