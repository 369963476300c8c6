"""From request fields to the engine's sampling parameters."""

from __future__ import annotations

from typing import Any

from lsv.errors import BadRequest
from lsv.request.params import SamplingParams
from lsv_api.http.context import Served
from lsv_api.records.requests import GenerationRequest, SampledRequest

MAX_PRIORITY = 1 << 31
MAX_TOKENS = 1 << 31
"""The longest answer that parameters can ask for: more fits no context either, and admission refuses it as that."""

_OTHER_FORM = ("max_tokens", "prompt_logprobs", "logit_bias")
"""Fields of requests that are checked, or turned into something else, before they are sampling parameters."""

_SAME_NAME = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingParams.__struct_fields__ and name not in _OTHER_FORM
)


def sampling_params(
    body: GenerationRequest, served: Served, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The parameters of a request; fields that were not given are those the checkpoint recommends, else the defaults.

    ``logprobs`` is how many candidates a position shows, None for no logprobs. Raises ``BadRequest``.
    """
    return SamplingParams(
        **requested_params(body, served),
        max_tokens=bounded(max_tokens),
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}),
    )


def requested_params(body: SampledRequest, served: Served) -> dict[str, Any]:
    """What the request and, where it is silent, the checkpoint say. Raises ``BadRequest`` for a wrong priority."""
    if not -MAX_PRIORITY <= (body.priority or 0) <= MAX_PRIORITY:
        raise BadRequest(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    named = {name: value for name in _SAME_NAME if (value := getattr(body, name, None)) is not None}
    return {**served.client.tokenizer.sampling_defaults, **named}


def bounded(max_tokens: int | None) -> int | None:
    """``max_tokens`` of a body as parameters can hold it."""
    return None if max_tokens is None else min(max_tokens, MAX_TOKENS)


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    """JSON has only text as keys; the engine wants token ids."""
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise BadRequest(f"logit_bias: keys must be token ids, got {key[:32]!r}", param="logit_bias")
    return {int(key): value for key, value in given.items()}
