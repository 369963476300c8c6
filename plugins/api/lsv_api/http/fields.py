"""Unknown fields of bodies: those that would change the answer or look misspelt are refused, the others are ignored."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from lsv_api.http.failures import Unsupported
from lsv_api.limits import Limits
from lsv_api.records.requests import Options
from lsv_base.errors import BadRequest

log = logging.getLogger("lsv.api")

Value = TypeVar("Value")

SHOWN_FIELDS = 8
"""How many unknown fields the log names."""

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
"""Fields that have another name on other servers."""

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
"""Fields that do not affect answers."""

_NOTHING: Mapping[str, Any] = {}


def field_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def check_unknown(
    fields: Mapping[str, Value],
    known: frozenset[str],
    limits: Limits,
    *,
    unavailable: Mapping[str, tuple[Any, ...]] = UNAVAILABLE,
    renamed: Mapping[str, str] = RENAMED,
    read: Callable[[Value], Any] = lambda value: value,
    where: str = "",
) -> None:
    """Refuse fields that would change the answer or look misspelt; ignore the rest, as OpenAI does.

    ``where`` is the path of the record that has the fields.
    """
    names = [name for name in fields if name not in known and name not in IGNORED]
    if len(names) > limits.unknown_fields:
        raise BadRequest(
            f"The body has {len(names)} unknown fields, {names[0][:64]!r} among them; the limit is "
            f"{limits.unknown_fields}"
        )
    ignored = []
    for name in names:
        place = where + name[:64]
        if name in unavailable:
            if read(fields[name]) not in unavailable[name]:
                raise Unsupported(f"{place} is not available on this server; leave it out", param=place)
        elif name in renamed:
            if read(fields[name]) not in (None, False):
                raise Unsupported(f"{place} is called {where}{renamed[name]} on this server", param=place)
        else:
            check_spelling(name, known, where)
            ignored.append(place)
    if ignored:
        log.warning("ignored unknown request fields: %s", ", ".join(map(repr, ignored[:SHOWN_FIELDS])))


def check_spelling(name: str, known: frozenset[str], where: str = "") -> None:
    """Raises ``BadRequest`` for a name that looks like a misspelt one."""
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.85)
    if near:
        raise BadRequest(
            f"Unknown field {where + name[:64]!r}; did you mean {where + near[0]!r}?", param=where + name[:64]
        )


def check_options(
    fields: Mapping[str, msgspec.Raw],
    kind: type[msgspec.Struct],
    limits: Limits,
    *,
    read: Callable[[msgspec.Raw], Any],
    where: str = "",
) -> None:
    """Check for unknown fields in the nested options of a record of ``kind``.

    Messages, their parts and calls are contents, in which clients may add fields such as ``cache_control``.
    """
    for name, record in _option_records(kind).items():
        try:
            inner = msgspec.json.decode(fields.get(name, b"null"), type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            continue  # null, or of a type that the parser refuses
        place = f"{where}{name}."
        check_unknown(
            inner, field_names(record), limits, unavailable=_NOTHING, renamed=_NOTHING, read=read, where=place
        )
        check_options(inner, record, limits, read=read, where=place)


@cache
def _option_records(kind: type[msgspec.Struct]) -> Mapping[str, type[msgspec.Struct]]:
    """The fields that are nested options."""
    return {
        name: record
        for name, hint in get_type_hints(kind).items()
        for record in (hint, *get_args(hint))
        if isinstance(record, type) and issubclass(record, Options)
    }
