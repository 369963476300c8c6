"""The OpenAPI 3.1 description of the routes, made from their records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lsv_api.records.responses import ErrorResponse
from lsv_api.routes import Route

_NOT_WORD = re.compile(r"\W+")
_CAPTURE = re.compile(r"<(\w+)(?::\w+)?>")


def describe_api(routes: Sequence[Route], *, version: str, root_path: str, needs_key: bool) -> dict[str, Any]:
    """The whole document as plain data."""
    records = {
        record
        for route in routes
        for record in (route.request, route.response, route.verbose, route.streams)
        if record is not None
    }
    ordered = sorted(records | {ErrorResponse}, key=lambda record: record.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_record = dict(zip(ordered, schemas, strict=True))
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "lsv", "version": version, "summary": "OpenAI-compatible inference server"},
        "servers": [{"url": root_path or "/"}],
        "paths": {},
        "components": {"schemas": components},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for route in routes:
        path = document["paths"].setdefault(_CAPTURE.sub(r"{\1}", route.path), {})
        path[route.method.lower()] = _operation(route, by_record, needs_key)
    return document


def _operation(route: Route, schemas: dict[type, Any], needs_key: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _NOT_WORD.sub("_", f"{route.method} {route.path}").strip("_").lower(),
        "responses": {
            "200": {"description": "Success", "content": _content(route, schemas)},
            "default": {
                "description": "Error",
                "content": {"application/json": {"schema": schemas[ErrorResponse]}},
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
    if needs_key and not route.public:
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
        content["text/event-stream"] = {"schema": schemas[route.streams]}
    return content
