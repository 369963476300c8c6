"""From the bytes of a request to its record: limits, JSON, unknown names, types."""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from sanic import Request
from sanic.exceptions import PayloadTooLarge, SanicException

from lsv.errors import BadRequest, TooLarge
from lsv_api.http.failures import BodyTimeout, Unsupported
from lsv_api.http.payloads import extract_payloads, restore_payloads
from lsv_api.http.shape import check_shape
from lsv_api.limits import Limits

log = logging.getLogger("lsv.api")

Body = TypeVar("Body", bound=msgspec.Struct)

Value = TypeVar("Value")

DISCARD_SECONDS = 2.0
SHOWN_FIELDS = 8
"""Unknown fields that the log names."""
_PEEK = 1024
"""Bytes of a field within which all neutral values are."""

_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")

_EMPTY: tuple[Any, ...] = (None, [], {}, "")

UNAVAILABLE: Mapping[str, tuple[Any, ...]] = {
    "suffix": _EMPTY,
    "tools": _EMPTY,
    "tool_choice": (None, "none", "auto"),
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "logits_processors": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "regex": _EMPTY,
    "ebnf": _EMPTY,
    "grammar": _EMPTY,
    "json_schema": _EMPTY,
    "structural_tag": _EMPTY,
    "stop_regex": _EMPTY,
    "logprob_token_ids": _EMPTY,
    "thinking_token_budget": (None,),
    "prompt_embeds": _EMPTY,
    "lora_path": _EMPTY,
    "custom_logit_processor": _EMPTY,
    "custom_params": _EMPTY,
    "ec_transfer_params": _EMPTY,
    "media_io_kwargs": _EMPTY,
    "watermarking": (None, False),
    "return_prompt_text": (None, False),
    "return_token_offsets": (None, False),
    "routed_experts_prompt_start": (None, 0),
    "stream_interval": (None, 1),
    "padding": (None, "do_not_pad"),
    "max_tokens_per_doc": (None,),
    "max_chunks_per_doc": (None,),
    "rank_fields": _EMPTY,
}
"""Fields that other servers support and this one does not yet, with their neutral values."""

RENAMED = {
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    "top_logprobs_num": "logprobs",
}
"""Fields that other servers call differently."""

IGNORED = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
        "request_id",
        "session_id",
        "return_mm_kwargs",
    }
)
"""Fields that change no answer of this server."""


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
    """Whether bodies of ``kind`` may have media in them."""
    return "messages" in field_names(kind)


def decode_body(data: bytes, kind: type[Body], limits: Limits = Limits()) -> Body:  # noqa: B008 - a frozen record
    """A checked record of ``kind``; every fault of the body is a ``BadRequest`` that names the field."""
    thin, payloads = extract_payloads(data)
    if payloads:
        with suppress(BadRequest):  # parsing the whole body finds it again
            body = _decode(thin, kind, limits)
            if restore_payloads(getattr(body, "messages", None) or (), payloads):
                return body
    return _decode(data, kind, limits)


def _decode(data: bytes, kind: type[Body], limits: Limits) -> Body:
    if len(data) > limits.text_bytes:
        raise TooLarge(
            f"The body has more than {limits.text_bytes / (1 << 20):g} MiB beside its media; send less or raise "
            "--api-max-text-mb"
        )
    check_shape(data, limits)
    fields = _split(data)
    check_unknown(fields, field_names(kind), limits, read=_peek)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise to_bad_request(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body must be JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None


def field_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _split(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, not parsed yet; of a key given twice the last one counts."""
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object: {str(error).replace('`', '')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body must be JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None


def _peek(field: msgspec.Raw) -> Any:
    """The value of a field that is only compared with neutral ones: of a long one, that it is none of them."""
    return _LONG if memoryview(field).nbytes > _PEEK else msgspec.json.decode(field)


_LONG = object()


def check_unknown(
    fields: Mapping[str, Value],
    known: frozenset[str],
    limits: Limits,
    *,
    unavailable: Mapping[str, tuple[Any, ...]] = UNAVAILABLE,
    read: Callable[[Value], Any] = lambda value: value,
) -> None:
    """Refuse fields that would change the answer or look misspelt; ignore the rest, as OpenAI does."""
    names = [name for name in fields if name not in known and name not in IGNORED]
    if len(names) > limits.unknown_fields:
        raise BadRequest(
            f"The body has {len(names)} fields that no request has, {names[0][:64]!r} among them: at most "
            f"{limits.unknown_fields} are ignored"
        )
    ignored = [name[:64] for name in names if not _is_neutral(name, fields, known, unavailable, read)]
    if ignored:
        log.warning("ignored unknown request fields: %s", ", ".join(map(repr, ignored[:SHOWN_FIELDS])))


def _is_neutral(
    name: str,
    fields: Mapping[str, Value],
    known: frozenset[str],
    unavailable: Mapping[str, tuple[Any, ...]],
    read: Callable[[Value], Any],
) -> bool:
    """Whether a field is one that other servers have, with its neutral value. Raises ``BadRequest`` for other values,
    and for a name that looks misspelt.
    """
    if name in unavailable:
        if read(fields[name]) not in unavailable[name]:
            raise Unsupported(f"{name} is not available on this server; leave it out", param=name)
        return True
    if name in RENAMED:
        if read(fields[name]) is None:
            return True
        raise Unsupported(f"{name} is called {RENAMED[name]} on this server", param=name)
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.85)
    if near:
        raise BadRequest(f"Unknown field {name[:64]!r}; did you mean {near[0]!r}?", param=name[:64])
    return False


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
