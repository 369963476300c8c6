"""Bodies of the routes that show prompts and take token ids, as vLLM and llama.cpp name their fields."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lsv_api.records.requests import GenerationRequest, Options, ResponseFormat, StreamOptions, TokenIds
from lsv_api.records.responses import ChatLogprobs, PromptLogprobs, Usage


class RenderedChat(msgspec.Struct, kw_only=True):
    """A conversation as the model is shown it: its text, and the token ids of that."""

    request_id: str
    model: str
    prompt: str
    token_ids: list[int]


class AppliedTemplate(msgspec.Struct, kw_only=True):
    """The same as llama.cpp names it."""

    prompt: str
    token_ids: list[int]


class InferenceParams(Options, kw_only=True):
    """How tokens are sampled: fields of /v1/completions."""

    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: TokenIds | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None


class InferenceRequest(msgspec.Struct, kw_only=True):
    """POST /inference/v1/generate. ``features``, prepared media, is here to be refused."""

    token_ids: TokenIds
    sampling_params: InferenceParams | None = None
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    features: Any = None


class InferenceChoice(msgspec.Struct, kw_only=True):
    """An answer, or what an event adds to one."""

    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class InferenceResponse(msgspec.Struct, kw_only=True):
    """All answers, or an event of a stream, whose last one has the usage if that is asked for."""

    request_id: str
    choices: list[InferenceChoice]
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    usage: Usage | UnsetType | None = UNSET


class TextRequest(GenerationRequest, kw_only=True):
    """POST /generate of vLLM's simple server: a text, and sampling parameters beside it."""

    prompt: str
    logprobs: int | None = None


class TextResponse(msgspec.Struct, kw_only=True):
    """The prompt with each of its ``n`` continuations, as far as they have come."""

    text: list[str]
