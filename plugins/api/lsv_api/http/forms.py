"""Bodies that are forms (multipart/form-data, RFC 7578): from their parts to a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from sanic.headers import parse_content_header

from lsv_api.http.bodies import to_bad_request
from lsv_api.http.fields import check_unknown, field_names
from lsv_api.limits import Limits
from lsv_api.records.requests import GenerationRequest
from lsv_base.errors import BadRequest, TooLarge

Body = TypeVar("Body", bound=msgspec.Struct)

MAX_PARTS = 256

_FILE = "file"
"""The one field that is bytes; all others are text."""

_OFF = ("false", "False", "0")

UNAVAILABLE: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(field_names(GenerationRequest), _OFF),
    "best_of": ("1",),
    "chunking_strategy": ("auto",),
    "hotwords": (),
    "include": (),
    "keywords": (),
    "known_speaker_names": (),
    "known_speaker_references": (),
    "languages": (),
    "length_penalty": ("1", "1.0"),
    "n": ("1",),
    "stream_continuous_usage_stats": _OFF,
    "to_language": (),
    "vllm_xargs": ("{}",),
}
"""As ``fields.UNAVAILABLE``, spelt as in forms; also fields of other routes that forms do not have."""


def decode_form(data: bytes, content_type: str, kind: type[Body], limits: Limits = Limits()) -> Body:  # noqa: B008
    """A checked record of ``kind``; every fault of the form is a ``BadRequest`` that names the field."""
    fields = _fields(data, content_type, limits)
    check_unknown(fields, field_names(kind), limits, unavailable=UNAVAILABLE)
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise to_bad_request(str(error)) from None


def _fields(data: bytes, content_type: str, limits: Limits) -> dict[str, Any]:
    """Values by name; ``name[]`` gathers a list. Empty texts are left out: web pages send them for "not given"."""
    kind, options = parse_content_header(content_type)
    boundary = options.get("boundary", "")
    if kind.lower() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise BadRequest("The body must be a form: send it as multipart/form-data with a boundary, as curl -F does")
    fields: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    left = limits.text_bytes
    for name, content in _parts(data, b"--" + boundary.encode("utf-8", "surrogateescape")):
        left -= 0 if name == _FILE else len(content)
        if left < 0:
            raise TooLarge(
                f"The form has more than {limits.text_bytes / (1 << 20):g} MiB without its file; send less or raise "
                "--api-max-text-mb"
            )
        value = content if name == _FILE else _text(name, content)
        if name.endswith("[]"):
            lists.setdefault(name[:-2], []).append(value)
        elif value or name == _FILE:
            fields[name] = value
    for name in lists.keys() & fields.keys():
        raise BadRequest(f"{name[:64]} and {name[:64]}[] are one field: send either", param=name[:64])
    return fields | lists


def _parts(data: bytes, delimiter: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents."""
    at = 0 if data.startswith(delimiter) else _find(data, b"\r\n" + delimiter, 0) + 2
    for _ in range(MAX_PARTS):
        at += len(delimiter)
        if data[at : at + 2] == b"--":
            return
        end = _find(data, b"\r\n" + delimiter, at)
        head = data.find(b"\r\n\r\n", at, end)
        if head < 0:
            raise BadRequest("The form is damaged: a part has no header")
        yield _name(data[at:head]), data[head + 4 : end]
        at = end + 2
    raise BadRequest(f"The form has more than {MAX_PARTS} parts")


def _find(data: bytes, delimiter: bytes, start: int) -> int:
    found = data.find(delimiter, start)
    if found < 0:
        raise BadRequest("The form is cut off: its last boundary is missing")
    return found


def _name(head: bytes) -> str:
    """The name in a part's header."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            name = parse_content_header(value.strip())[1].get("name")
            if isinstance(name, str) and name:
                return name
    raise BadRequest("The form is damaged: a part has no name")


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{name[:64]} must be text in UTF-8", param=name[:64]) from None
