"""From the bytes of a request to its record: limits, JSON, unknown names, types."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from sanic import Request
from sanic.exceptions import PayloadTooLarge, SanicException

from lsv_api.http.failures import BodyTimeout
from lsv_api.http.fields import check_options, check_unknown, field_names
from lsv_api.http.payloads import extract_payloads, restore_payloads
from lsv_api.http.shape import check_shape
from lsv_api.limits import Limits
from lsv_base.errors import BadRequest, TooLarge

Body = TypeVar("Body", bound=msgspec.Struct)

DISCARD_SECONDS = 2.0
_PEEK = 1024
"""Bytes of a field within which all neutral values are."""

_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""A JSON escape. Two surrogate escapes make one character."""
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


async def read_body(request: Request, limit: int, option: str, timeout: float) -> bytes:
    """The whole body. Raises ``TooLarge`` over ``limit`` bytes, which ``option`` sets, and ``BodyTimeout`` after
    ``timeout`` seconds.
    """
    stream: Any = request.stream
    if stream is None or not stream.request_body:
        return b""
    stream.request_max_size = limit
    try:
        async with asyncio.timeout(timeout):
            return b"".join([piece async for piece in stream])
    except PayloadTooLarge:
        await _discard(stream)
        raise TooLarge(
            f"The body is over the limit of {limit / (1 << 20):g} MiB; send less or raise {option}"
        ) from None
    except TimeoutError:
        raise BodyTimeout(f"The body did not arrive within {timeout:g} seconds") from None


async def _discard(stream: Any) -> None:
    """Read on for a moment: closing a connection with unread data would lose the answer."""
    stream.request_max_size = float("inf")
    with suppress(TimeoutError, SanicException):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for _ in stream:
                pass


def brings_media(kind: type[msgspec.Struct]) -> bool:
    """Whether bodies of ``kind`` may have media in them: conversations, and records with ``brings_media = True``."""
    return "messages" in field_names(kind) or getattr(kind, "brings_media", False)


def decode_body(data: bytes, kind: type[Body], limits: Limits = Limits()) -> Body:  # noqa: B008 - a frozen record
    """A checked record of ``kind``; every fault of the body is a ``BadRequest`` that names the field.

    Records whose items have no types say ``payloads_anywhere``: what looks like a payload in them counts as media.
    """
    thin, payloads = extract_payloads(data)
    if payloads:
        with suppress(BadRequest):  # parsing the whole body finds it again
            body = _decode(thin, kind, limits)
            if _restore(body, payloads):
                return body
    return _decode(data, kind, limits, len(thin) if getattr(kind, "payloads_anywhere", False) else len(data))


def _restore(body: msgspec.Struct, payloads: dict[str, bytes]) -> bool:
    """Give a body its payloads. Records whose media have another form do it by themselves, with ``take_payloads``."""
    take: Callable[[dict[str, bytes]], bool] | None = getattr(body, "take_payloads", None)
    return restore_payloads(body, payloads) if take is None else take(payloads)


def _decode(data: bytes, kind: type[Body], limits: Limits, size: int | None = None) -> Body:
    """``size`` are the bytes beside media, where these are parsed with the rest."""
    if (len(data) if size is None else size) > limits.text_bytes:
        raise TooLarge(
            f"The body has more than {limits.text_bytes / (1 << 20):g} MiB without its media; send less or raise "
            "--api-max-text-mb"
        )
    check_shape(data, limits)
    fields = _split(data)
    check_unknown(fields, field_names(kind), limits, read=_peek)
    check_options(fields, kind, limits, read=_peek)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise to_bad_request(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(data, error) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None


def _split(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, not parsed yet; of a key given twice the last one counts."""
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object: {str(error).replace('`', '')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(data, error) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None


def _peek(field: msgspec.Raw) -> Any:
    """The value of a field that is only compared with neutral ones: of a long one, that it is none of them."""
    return _LONG if memoryview(field).nbytes > _PEEK else msgspec.json.decode(field)


_LONG = object()


def _malformed(data: bytes, error: Exception) -> BadRequest:
    """The error for a body that is not JSON. The parser's own message does not explain a lone surrogate."""
    half = next((found["half"] for found in _ESCAPE.finditer(data) if found["half"]), None)
    if half is None:
        return BadRequest(f"The body must be JSON: {error}")
    return BadRequest(
        f"The body has \\{half.decode()}, half of a surrogate pair: a string was cut inside a character, such as an "
        "emoji; send the whole character, or leave it out"
    )


def to_bad_request(error: str) -> BadRequest:
    """msgspec's "Expected `int`, got `str` - at `$.n`" as one of ours."""
    found = _LOCATED.match(error)
    what, where = (found["what"], found["where"]) if found else (error, None)
    missing = _MISSING.search(what)
    if missing:
        field = ".".join(part for part in (where, missing["name"]) if part)
        return BadRequest(f"{field} is required", param=field)
    what = what.replace("`", "")
    return BadRequest(f"{where}: {what[:1].lower()}{what[1:]}" if where else what, param=where or None)
