"""From request fields to the engine's sampling parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lsv.errors import BadRequest
from lsv.request.params import SamplingParams
from lsv_api.http.context import Served
from lsv_api.http.failures import ContextTooLong
from lsv_api.records.requests import GenerationRequest, SampledRequest

MAX_PRIORITY = 1 << 31

_SAME_NAME = (
    "n",
    "best_of",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "allowed_token_ids",
)


def sampling_params(body: GenerationRequest, served: Served, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """The parameters of a request; fields that were not given are those the checkpoint recommends, else the defaults.

    ``logprobs`` is how many candidates a position shows, None for no logprobs. Raises ``BadRequest``.
    """
    given = given_params(body, served)
    _check_logprobs("logprobs", logprobs, served)
    _check_logprobs("prompt_logprobs", body.prompt_logprobs, served)
    for name in ("stop_token_ids", "allowed_token_ids"):
        check_ids(given.get(name, ()), served.vocab_size, name)
    # Choosing the best of several answers needs the log probability of their tokens.
    choosing = body.best_of is not None and body.best_of > (body.n or 1)
    return SamplingParams(
        **given,
        max_tokens=max_tokens,
        logprobs=0 if choosing and logprobs is None else logprobs,
        prompt_logprobs=body.prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}, served.vocab_size),
    )


def given_params(body: SampledRequest, served: Served) -> dict[str, Any]:
    """What the request and, where it is silent, the checkpoint say. Raises ``BadRequest`` for a wrong priority."""
    if not -MAX_PRIORITY <= (body.priority or 0) <= MAX_PRIORITY:
        raise BadRequest(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    asked = {name: value for name in _SAME_NAME if (value := getattr(body, name, None)) is not None}
    return {**served.client.tokenizer.sampling_defaults, **asked}


def fit_max_tokens(asked: int | None, default: int | None, prompt: int, served: Served, param: str) -> int:
    """How many tokens an answer may have after ``prompt`` tokens. Raises ``ContextTooLong``.

    What was asked for must fit; a default (None: all that is left) shrinks to what is left of the context.
    """
    left = served.max_model_len - prompt
    if left < 1:
        raise ContextTooLong(
            f"This model's maximum context length is {served.max_model_len} tokens, "
            f"but the prompt has {prompt}; shorten it or set truncate_prompt_tokens",
            param=param,
        )
    if asked is None:
        return min(default or left, left)
    if asked > left:
        raise ContextTooLong(
            f"This model's maximum context length is {served.max_model_len} tokens, "
            f"but {prompt} in the prompt and {asked} for the answer were requested; "
            f"shorten the prompt or ask for at most {left}",
            param=param,
        )
    return asked


def check_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    """Raise ``BadRequest`` for a token id the model does not have."""
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"{param}: token id {token:.6g} is not in the vocabulary (0 to {vocab_size - 1})", param=param
            )


def _check_logprobs(name: str, value: int | None, served: Served) -> None:
    most = served.client.config.max_logprobs
    if value is not None and most >= 0 and value > most:
        raise BadRequest(f"{name} must be at most {most} (the server's max-logprobs), got {value}", param=name)


def _logit_bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    """JSON has only text as keys; the engine wants token ids."""
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise BadRequest(f"logit_bias: keys must be token ids, got {key[:32]!r}", param="logit_bias")
        bias[int(key)] = value
    check_ids(bias, vocab_size, "logit_bias")
    return bias
