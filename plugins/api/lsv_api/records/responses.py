"""Bodies of responses, in the order of fields the OpenAI API documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class ErrorBody(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    error: ErrorBody


class PromptDetails(msgspec.Struct):
    """``cached_tokens`` of the prompt came from the prefix cache."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """``reasoning_tokens`` of the answer were thoughts; the other two are of tokens that were drafted and verified."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""One entry a prompt token, keyed by token id; the first token has none."""


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists over tokens; ``text_offset`` counts characters from the start of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """A whole completion, or one chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    kv_transfer_params: Mapping[str, Any] | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """``arguments`` is JSON, as the model wrote it."""

    name: str
    arguments: str


class MadeToolCall(msgspec.Struct, kw_only=True):
    """A call that the answer asks for."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """A call begins, with its id and name, or goes on with a piece of its arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] = []


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: Mapping[str, Any] | None = None


class Delta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed chat completion; the usage event has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


class Embedding(msgspec.Struct, kw_only=True):
    """``embedding``: numbers, or little-endian float32 as base64."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


class Seconds(msgspec.Struct, kw_only=True):
    """What a sound is counted as: whole seconds, begun ones among them."""

    type: Literal["duration"] = "duration"
    seconds: int


class Transcription(msgspec.Struct, kw_only=True):
    text: str
    usage: Seconds


class Segment(msgspec.Struct, kw_only=True):
    """A passage between two timestamps, in seconds from the beginning of the audio. ``seek`` is where its piece of the
    audio begins, in hundredths of a second; the mean log probability, the compression ratio and the probability that
    nothing is said are that piece's.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None


class VerboseTranscription(msgspec.Struct, kw_only=True):
    """``duration`` in seconds; ``language`` by its English name, of a translation "english"."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[Segment]
    usage: Seconds


class InputTokens(msgspec.Struct, kw_only=True):
    text_tokens: int
    audio_tokens: int


class SpeechUsage(msgspec.Struct, kw_only=True):
    """Tokens of a streamed transcription; those of the sound are what the encoder makes of it."""

    type: Literal["tokens"] = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokens


class TranscriptEvent(msgspec.Struct, kw_only=True):
    """One event of a streamed transcription: ``delta`` has new text, the last one all ``text`` and the usage."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    usage: SpeechUsage | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lsv"
    root: str
    parent: str | None = None
    max_model_len: int
    modalities: list[str]
    tasks: list[str]


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ReplicaState(msgspec.Struct, kw_only=True):
    """One engine as /health shows it; ``done`` of ``total`` counts the present loading ``stage``. ``silent`` is for how
    many seconds a ready engine has missed heartbeats, 0 while it sends them.
    """

    state: str
    stage: str
    done: int
    total: int
    error: str | None = None
    silent: float = 0.0


class EngineState(ReplicaState, kw_only=True):
    """A model's engine; of several that share its requests what they are together, and each by itself."""

    model: str
    replicas: list[ReplicaState] | msgspec.UnsetType = msgspec.UNSET


class Sleeping(msgspec.Struct, kw_only=True):
    """Whether any engine has given memory back."""

    is_sleeping: bool


class Health(msgspec.Struct, kw_only=True):
    """``status``: ready, silent, loading, sleeping, draining or dead."""

    status: str
    models: list[EngineState]


class Version(msgspec.Struct, kw_only=True):
    """``fingerprints``: served name → fingerprint of its engine's configuration."""

    version: str
    fingerprints: dict[str, str]


class Index(msgspec.Struct, kw_only=True):
    name: str
    version: str
    models: list[str]
    routes: list[str]


class Alive(msgspec.Struct):
    status: Literal["live"] = "live"
