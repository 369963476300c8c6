"""What Ollama's ``options``, ``format`` and ``think`` are in a request of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.ollama.records import OllamaAnswerRequest, OllamaOptions
from lsv_api.openai.conversation import SWITCHES
from lsv_api.records.requests import JsonSchemaFormat, ResponseFormat
from lsv_base.errors import BadRequest

_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Options that are honoured, and the fields that they become."""

_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Fields that penalise tokens that have occurred, and the values at which they do not."""

_NEUTRAL: Mapping[str, tuple[float, ...]] = {"typical_p": (1,), "tfs_z": (0, 1), "mirostat": (0,)}
"""Options of samplers that lsv does not have, and the values at which these do nothing."""

_UNLIMITED = (-1, -2)
"""What ``num_predict`` is where an answer may fill the context."""

_EFFORTS = ("low", "medium", "high")


def sampling_fields(options: OllamaOptions | None) -> dict[str, Any]:
    """The fields of a request that ``options`` stand for. Raises ``BadRequest`` for those that can't be honoured."""
    if options is None:
        return {}
    for name, neutral in _NEUTRAL.items():
        if getattr(options, name) not in (None, *neutral):
            raise Unsupported(
                f"options.{name} is not available on this server; leave it out, or use temperature, top_p or min_p",
                param=f"options.{name}",
            )
    fields = {
        field: value for name, field in _SAMPLING.items() if (value := getattr(options, name)) is not None
    } | _length(options.num_predict)
    return _penalised(options, fields)


def _length(num_predict: int | None) -> dict[str, int]:
    if num_predict is None or num_predict in _UNLIMITED:
        return {}
    if num_predict < 1:
        raise BadRequest(
            f"options.num_predict must be at least 1, or -1 for no limit, got {num_predict}",
            param="options.num_predict",
        )
    return {"max_tokens": num_predict}


def _penalised(options: OllamaOptions, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with penalties of the window that is asked for: none, or the whole text, which is what lsv has."""
    if options.repeat_last_n == 0:
        return {**fields, **_PENALTIES}
    if all(fields.get(name, neutral) == neutral for name, neutral in _PENALTIES.items()):
        return fields
    if options.repeat_last_n not in (None, -1):
        raise Unsupported(
            "options.repeat_last_n: penalties count the prompt and the whole answer here; send -1, or leave it out",
            param="options.repeat_last_n",
        )
    if options.penalize_newline is False:
        raise Unsupported(
            "options.penalize_newline: penalties count line breaks here; leave it out", param="options.penalize_newline"
        )
    return fields


def answer_fields(body: OllamaAnswerRequest) -> dict[str, Any]:
    """The fields of a request for what answers to a conversation and to a text have in common."""
    return {**sampling_fields(body.options), "response_format": _response_format(body.format)}


def _response_format(given: str | dict[str, Any] | None) -> ResponseFormat | None:
    if given is None or given == "":
        return None
    if given == "json":
        return ResponseFormat(type="json_object")
    if isinstance(given, str):
        raise BadRequest(f'format must be "json" or a JSON schema, got {given[:64]!r}', param="format")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=given, name="format"))


def thinking_fields(think: bool | str | None, served: Served) -> dict[str, Any]:
    """The fields of a request that turn thinking on and off, or say how much of it there should be.

    Raises ``BadRequest`` for thoughts of a model that has none, in the words by which clients know that.
    """
    if think is None:
        return {}
    if isinstance(think, str) and think not in _EFFORTS:
        raise BadRequest(f'think must be true, false, "low", "medium" or "high", got {think[:64]!r}', param="think")
    if think and served.parsing.thoughts is None:
        raise Unsupported(
            f'"{served.name}" does not support thinking: no parser reads its thoughts; leave think out, or start the '
            "server with --reasoning-parser",
            param="think",
        )
    switches = dict.fromkeys(SWITCHES, bool(think))
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"chat_template_kwargs": switches, "include_reasoning": bool(think), **effort}
