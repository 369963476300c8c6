"""From request fields to the engine's sampling parameters."""

from __future__ import annotations

import hashlib
from typing import Any

from lsv.request.params import SamplingParams
from lsv_api.http.context import Exchange, Served
from lsv_api.http.failures import Unsupported
from lsv_api.limits import Limits
from lsv_api.openai.structured import form_origin, structured_params
from lsv_api.records.requests import GenerationRequest, SampledRequest, ScheduledRequest
from lsv_base.errors import BadRequest

MAX_PRIORITY = 1 << 31
MAX_TOKENS = 1 << 31
"""The longest answer that parameters can ask for: more fits no context either, and admission refuses it as that."""

_OTHER_FORM = ("max_tokens", "prompt_logprobs", "logit_bias", "structured_outputs")
"""Fields of requests that are checked, or turned into something else, before they are sampling parameters."""

_SAME_NAME = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingParams.__struct_fields__ and name not in _OTHER_FORM
)


def check_answers(body: GenerationRequest, prompts: int, served: Served, limits: Limits) -> None:
    """Raises ``BadRequest`` for more answers, or longer lists, than one request may ask for."""
    for name in ("n", "best_of"):
        if (getattr(body, name) or 1) > limits.n:
            raise BadRequest(f"{name} must be at most {limits.n} (--api-max-n)", param=name)
    answers = prompts * (body.best_of or body.n or 1)
    most = min(limits.candidates, served.client.config.max_queue)
    if answers > most:
        raise BadRequest(
            f"prompts times answers to each are {answers}: one request takes at most {most} "
            "(--api-max-candidates, --max-queue)",
            param="prompt" if answers == prompts else "n",
        )
    _check_count("stop", body.stop, limits.stop_strings, "stop-strings")
    _check_count("bad_words", body.bad_words, limits.bad_words, "bad-words")
    lists = {name: len(getattr(body, name) or ()) for name in ("allowed_token_ids", "stop_token_ids", "logit_bias")}
    if answers * sum(lists.values()) > limits.token_ids:
        raise BadRequest(
            f"{' and '.join(name for name, size in lists.items() if size)}: {sum(lists.values())} token ids for each "
            f"of {answers} answers are too many: one request takes at most {limits.token_ids} together",
            param=max(lists, key=lambda name: lists[name]),
        )


def _check_count(name: str, texts: str | list[str] | None, most: int, option: str) -> None:
    if isinstance(texts, list) and len(texts) > most:
        raise BadRequest(f"{name} takes at most {most} strings (--api-max-{option}), got {len(texts)}", param=name)


def sampling_params(
    body: GenerationRequest, served: Served, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The parameters of a request; fields that were not given are those the checkpoint recommends, else the defaults.

    ``logprobs`` is how many candidates a position shows, None for no logprobs. Raises ``BadRequest``.
    """
    with form_origin(body).naming():
        return SamplingParams(
            **requested_params(body, served),
            max_tokens=bounded(max_tokens),
            logprobs=logprobs,
            prompt_logprobs=body.prompt_logprobs,
            logit_bias=_logit_bias(body.logit_bias or {}),
            structured_outputs=structured_params(body),
            extra_args=_extra_args(body.vllm_xargs, served),
        )


def requested_params(body: SampledRequest, served: Served) -> dict[str, Any]:
    """What the request and, where it is silent, the checkpoint say.

    What checkpoints recommend is for drawing tokens; a beam search draws none.
    """
    named = {name: value for name in _SAME_NAME if (value := getattr(body, name, None)) is not None}
    return named if named.get("use_beam_search") else {**served.client.tokenizer.sampling_defaults, **named}


def tenancy(exchange: Exchange, salt: str | None = None) -> dict[str, Any]:
    """The fields of a request that identify its account and its adapter."""
    account = exchange.account
    return {
        "tenant": account.name,
        "weight": account.weight,
        "priority_at_least": account.priority_at_least,
        "adapter": exchange.adapter,
        "salt": salt_of(exchange, salt),
    }


def salt_of(exchange: Exchange, salt: str | None) -> bytes:
    """The salt of a request's cache entries: 32 bytes that go into the hash of every block.

    It separates the cached prefixes, media, grammars and drafts of accounts, unless they are shared. It also separates
    requests with their own ``salt`` from all others.
    """
    owner = "" if exchange.api.options.shared_prefix_cache else exchange.account.name
    if not owner and not salt:
        return b""
    parts = (owner.encode(), (salt or "").encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def priority_of(body: ScheduledRequest) -> int:
    """Raises ``BadRequest`` for one that is out of range."""
    if not -MAX_PRIORITY <= (body.priority or 0) <= MAX_PRIORITY:
        raise BadRequest(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    return body.priority or 0


def bounded(max_tokens: int | None) -> int | None:
    """``max_tokens`` of a body as parameters can hold it."""
    return None if max_tokens is None else min(max_tokens, MAX_TOKENS)


def _extra_args(given: dict[str, Any] | None, served: Served) -> dict[str, Any] | None:
    """What the engine's logits processors are told. Raises ``Unsupported`` where there are none."""
    if given and not served.client.config.logits_processors:
        raise Unsupported(
            "vllm_xargs: this server has no logits processors that could read it; start it with --logits-processors, "
            "or leave it out",
            param="vllm_xargs",
        )
    return given or None


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    """JSON has only text as keys; the engine wants token ids."""
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise BadRequest(f"logit_bias: keys must be token ids, got {key[:32]!r}", param="logit_bias")
    return {int(key): value for key, value in given.items()}
