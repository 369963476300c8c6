"""From the bytes of a request to its record: limits, JSON, unknown names, types."""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from sanic import Request
from sanic.exceptions import PayloadTooLarge, SanicException

from lsv.errors import BadRequest, TooLarge
from lsv_api.http.failures import BodyTimeout, Unsupported
from lsv_api.http.payloads import extract_payloads, restore_payloads

log = logging.getLogger("lsv.api")

Body = TypeVar("Body", bound=msgspec.Struct)

DISCARD_SECONDS = 2.0

_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")

_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")

UNAVAILABLE: Mapping[str, tuple[Any, ...]] = {
    "suffix": _EMPTY,
    "tool_choice": (None, "none", "auto"),
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": _EMPTY,
    "guided_json": _EMPTY,
    "guided_regex": _EMPTY,
    "guided_choice": _EMPTY,
    "guided_grammar": _EMPTY,
    "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,),
    "use_beam_search": _OFF,
    "length_penalty": (None, 1, 1.0),
    "early_stopping": _OFF,
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "logits_processors": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "vllm_xargs": _EMPTY,
}
"""Fields that other servers support and this one does not yet, with their neutral values."""

IGNORED = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
        "request_id",
    }
    | {"tools"}
)
"""Fields that change no answer of this server (``tools`` is checked together with ``tool_choice``)."""


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """The whole body. Raises ``TooLarge`` over ``limit`` bytes, ``BodyTimeout`` after ``timeout`` seconds."""
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
            f"The body is over the limit of {limit / (1 << 20):g} MiB; send less or raise --max-body-mb"
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


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """A checked record of ``kind``; every fault of the body is a ``BadRequest`` that names the field."""
    thin, payloads = extract_payloads(data)
    if payloads:
        with suppress(BadRequest):  # parsing the whole body finds it again
            body = _decode(thin, kind)
            if restore_payloads(getattr(body, "messages", None) or (), payloads):
                return body
    return _decode(data, kind)


def _decode(data: bytes, kind: type[Body]) -> Body:
    fields = _decode_object(data)
    _refuse_tools(fields)
    known = field_names(kind)
    for name, value in fields.items():
        if name not in known:
            check_unknown(name, value, known)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise to_bad_request(str(error)) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None


def field_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _decode_object(data: bytes) -> dict[str, Any]:
    """Parse JSON; of a key given twice the last one counts."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body must be JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None
    if not isinstance(found, dict):
        raise BadRequest(f"The body must be a JSON object, got {type(found).__name__}")
    return found


def _refuse_tools(fields: Mapping[str, Any]) -> None:
    """A request may list tools as long as the model is told not to call them."""
    if fields.get("tools") and fields.get("tool_choice") != "none":
        raise Unsupported(
            'tools are not available on this server; leave them out or set tool_choice to "none"',
            param="tools",
        )


def check_unknown(
    name: str, value: Any, known: frozenset[str], unavailable: Mapping[str, tuple[Any, ...]] = UNAVAILABLE
) -> None:
    """Refuse fields that would change the answer or look misspelt; ignore the rest, as OpenAI does."""
    if name in IGNORED:
        return
    if name in unavailable:
        if value not in unavailable[name]:
            raise Unsupported(f"{name} is not available on this server; leave it out", param=name)
        return
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.85)
    if near:
        raise BadRequest(f"Unknown field {name[:64]!r}; did you mean {near[0]!r}?", param=name[:64])
    log.warning("ignored unknown request field %r", name[:64])


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
