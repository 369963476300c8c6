"""Bodies of requests, field for field as the OpenAI API and vLLM's extensions name them.

Optional fields accept null, because clients send it for "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from lsv.media.content_parts import ContentPart

MAX_SALT = 1024
"""Characters of a cache salt."""


def _described(**schema: Any) -> msgspec.Meta:
    """What the description of the API says of a field beyond its type. The field's own reader checks it."""
    return msgspec.Meta(extra_json_schema=schema)


PromptField = str | list[int | str | list[int]]
"""A text, texts, token ids, or lists of token ids."""
TokenIds = Annotated[list[int], _described(minItems=1)]


class Options(msgspec.Struct, kw_only=True):
    """Nested options in a body. Unknown fields are checked as in the body itself."""


class StreamOptions(Options, kw_only=True):
    """``include_usage`` adds a last chunk with the usage, ``continuous_usage_stats`` puts it in all."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ScheduledRequest(msgspec.Struct, kw_only=True):
    """What all requests share that the engine computes."""

    model: str | None = None
    user: str | None = None
    priority: int | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=MAX_SALT)] | None = None


class SampledRequest(ScheduledRequest, kw_only=True):
    """What all requests share whose answers are sampled."""

    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


class JsonSchemaFormat(Options, kw_only=True):
    """The schema of an answer. It is followed exactly, ``strict`` or not."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Options, kw_only=True):
    """What form an answer must have: ``text``, ``json_object``, ``json_schema``, or ``structural_tag`` with either
    ``structures`` and ``triggers`` or ``format``. Other servers have ``schema`` next to the type.
    """

    type: str
    schema: dict[str, Any] | bool | None = None
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class TransferParams(msgspec.Struct, kw_only=True):
    """Engines that share a request. ``do_remote_decode`` asks the one that computes the prompt to hand it on, and its
    answer has what the one with ``do_remote_prefill`` is to be told. With ``remote_prefill_pending`` it may be told
    before that answer is there. What else vLLM's connectors have in it is ignored.
    """

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: str | None = None
    remote_block_ids: list[Any] | None = None
    remote_host: str | None = None
    remote_port: int | str | None = None
    remote_prefill_pending: bool | None = None


class GenerationRequest(SampledRequest, kw_only=True):
    """What completions and chat completions share."""

    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    logit_bias: Annotated[dict[str, float], _described(propertyNames={"pattern": "^[0-9]{1,9}$"})] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    repetition_detection: dict[str, Any] | None = None
    kv_transfer_params: TransferParams | None = None
    truncation_side: Literal["left", "right"] | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions. ``prompt``: a text, texts, token ids, or lists of token ids.

    A model that encodes text reads the prompt in its encoder; ``decoder_prompt``, a text or token ids, is what all
    answers begin with.
    """

    prompt: PromptField
    decoder_prompt: str | list[int] | None = None
    logprobs: int | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True):
    """A call the assistant made earlier in the conversation."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation. Other fields that clients add are ignored.

    ``function_call``, ``audio`` and ``prefix`` are here to be refused, because they would change the prompt.
    """

    role: Annotated[str, _described(pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: Any = None
    audio: Any = None
    prefix: bool | None = None


Messages = Annotated[list[Message], _described(minItems=1)]


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


File = Annotated[Any, msgspec.Meta(extra_json_schema={"type": "string", "format": "binary"})]
"""A part of a form as it was sent: bytes, which msgspec would describe as base64."""


class SpeechRequest(SampledRequest, kw_only=True):
    """POST /v1/audio/transcriptions and /v1/audio/translations: a form. ``language`` is the one that is spoken."""

    file: File
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    timestamp_granularities: list[Literal["word", "segment"]] | None = None
    max_completion_tokens: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a ``prompt`` or chat ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """``base_model_name`` is the served model it is for, by default the first; ``load_inplace`` takes the name from an
    adapter that has it.
    """

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """``lora_int_id`` is not looked at: names are enough."""

    lora_name: str
    lora_int_id: int | None = None
