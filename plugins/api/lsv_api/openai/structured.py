"""The fields that say what form an answer must have, OpenAI's and vLLM's, as one record of the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.request.structured import StructuredOutputsParams
from lsv_api.http.failures import Unsupported
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.records.requests import GenerationRequest, ResponseFormat
from lsv_base.errors import BadRequest

_GUIDED = ("json", "regex", "choice", "grammar")
_SCHEMA = ("json_schema", "schema")
_TAG = ("structures", "triggers", "format")
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": (), "json_object": _SCHEMA, "json_schema": _SCHEMA, "structural_tag": _TAG
}  # fmt: skip
"""The types of a ``response_format``, and the further fields of each type."""
_OPTIONS = ("whitespace_pattern", "backend")
_FIELDS = (*_GUIDED, "json_object", "structural_tag", *_OPTIONS)
"""What ``structured_outputs`` may hold."""
_OTHERS = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
"""What ``structured_outputs`` of other servers may hold beside."""
_NEUTRAL: tuple[Any, ...] = (None, False, "")
"""Values that mean the option is not set. For a form only null does, because an empty list of choices is a mistake."""


def structured_params(body: GenerationRequest) -> StructuredOutputsParams | None:
    """What form the answer must have, None for any. Raises ``BadRequest`` that names the field."""
    given = _given(body)
    if len(given) > 1:
        raise BadRequest(
            f"{' and '.join(given)} both set the form of the answer; set only one of them", param=list(given)[1]
        )
    for field, fields in given.items():
        options = {
            "whitespace_pattern": body.guided_whitespace_pattern or None,
            "backend": body.guided_decoding_backend or None,
        }
        try:
            return StructuredOutputsParams(**{**options, **fields})
        except BadRequest as error:
            raise FormOrigin(_field_of(field, fields)).rename(error) from None
    if body.guided_whitespace_pattern:
        raise BadRequest(
            "guided_whitespace_pattern needs a JSON schema: give response_format or guided_json",
            param="guided_whitespace_pattern",
        )
    return None


def form_origin(body: GenerationRequest) -> FormOrigin:
    """The field that sets the form of the answer. Raises ``BadRequest`` as ``structured_params``."""
    for field, fields in _given(body).items():
        return FormOrigin(_field_of(field, fields))
    return FormOrigin()


def _given(body: GenerationRequest) -> dict[str, dict[str, Any]]:
    """The forms that the fields ask for, without fields that are not set."""
    asked = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_outputs(body.structured_outputs),
        "guided_json": _of_guided(body),
    }
    return {field: fields for field, fields in asked.items() if fields}


def _field_of(field: str, fields: dict[str, Any]) -> str:
    return field if field != "guided_json" else f"guided_{next(iter(fields))}"


def _of_format(given: ResponseFormat | None) -> dict[str, Any]:
    if given is None:
        return {}
    if given.type not in _FORMATS:
        raise BadRequest(
            f"response_format: type {given.type[:64]!r} is not available; use one of {', '.join(_FORMATS)}",
            param="response_format.type",
        )
    for name in (*_SCHEMA, *_TAG):
        if getattr(given, name) is not None and name not in _FORMATS[given.type]:
            takes = " or ".join(kind for kind, names in _FORMATS.items() if name in names)
            raise BadRequest(
                f"response_format.{name} needs type {takes}, got {given.type}", param=f"response_format.{name}"
            )
    if given.type == "structural_tag":
        return {"structural_tag": {name: value for name in _TAG if (value := getattr(given, name)) is not None}}
    return _of_schema(given) if _FORMATS[given.type] else {}


def _of_schema(given: ResponseFormat) -> dict[str, Any]:
    """A JSON schema, in OpenAI's place or next to the type."""
    schema = given.schema
    if given.json_schema is not None and given.json_schema.schema is not None:
        if schema is not None:
            raise BadRequest(
                "response_format: schema and json_schema.schema mean the same; set only one",
                param="response_format.schema",
            )
        schema = given.json_schema.schema
    if given.type == "json_object":
        return {"json_object": True} if schema in (None, True, {}) else {"json": schema}
    if schema is None:
        raise BadRequest(
            "response_format.json_schema.schema is required with type json_schema", param="response_format.json_schema"
        )
    return {"json": schema}


def _of_outputs(given: dict[str, Any] | None) -> dict[str, Any]:
    found = {name: value for name, value in (given or {}).items() if not _is_left_out(name, value)}
    for name in found:
        if name in _OTHERS:
            raise Unsupported(
                f"structured_outputs.{name} is not available on this server; leave it out",
                param=f"structured_outputs.{name}",
            )
        if name not in _FIELDS:
            raise BadRequest(
                f"structured_outputs takes {', '.join(_FIELDS)}, got {name[:64]!r}", param="structured_outputs"
            )
    return found


def _is_left_out(name: str, value: Any) -> bool:
    return value is None if name in (*_GUIDED, "structural_tag") else value in _NEUTRAL


def _of_guided(body: GenerationRequest) -> dict[str, Any]:
    given = {name: getattr(body, f"guided_{name}") for name in _GUIDED}
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(f"guided_{name}" for name in found)
        raise BadRequest(f"{names} both set the form of the answer; set only one of them", param="guided_json")
    return found
