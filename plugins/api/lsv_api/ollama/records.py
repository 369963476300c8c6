"""Bodies of Ollama's API, field for field as its clients name them. Null stands for "not given"."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lsv_api.records.requests import Options
from lsv_api.records.responses import ChatLogprob

Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})]
KeepAlive = float | str
"""Seconds, or a duration such as ``5m``."""


class OllamaOptions(Options, kw_only=True):
    """How answers are sampled. The fields after ``penalize_newline`` say how Ollama loads a model: they change nothing
    here, where the operator has loaded it.
    """

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None
    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_thread: int | None = None
    main_gpu: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    embedding_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


class OllamaRequest(msgspec.Struct, kw_only=True):
    """What all requests share that name a model."""

    model: str | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaAnswerRequest(OllamaRequest, kw_only=True):
    """What both routes share that answer. ``format`` is ``json`` or a JSON schema. Answers are streamed unless
    ``stream`` is false.
    """

    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A function that is called. ``arguments`` is an object."""

    name: str
    arguments: dict[str, Any] | None = None
    index: int | None = None


class OllamaCall(msgspec.Struct, kw_only=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A message of a conversation. ``images`` are in base64, without a data URL."""

    payloads: ClassVar[tuple[str, ...]] = ("images",)

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Base64] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaAnswerRequest, kw_only=True):
    """POST /api/chat."""

    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaAnswerRequest, kw_only=True):
    """POST /api/generate. ``context`` is that of an earlier answer. The last six fields are refused."""

    brings_media: ClassVar[bool] = True
    payloads: ClassVar[tuple[str, ...]] = ("images",)

    prompt: str | None = None
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[Base64] | None = None
    suffix: str | None = None
    template: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    _debug_render_only: bool | None = None


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """What both answers share. The durations and counts are in the last object: nanoseconds and tokens."""

    model: str
    created_at: datetime
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET


class OllamaMadeFunction(msgspec.Struct, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaMadeCall(msgspec.Struct, kw_only=True):
    """A call that the answer asks for."""

    id: str
    function: OllamaMadeFunction


class OllamaAnswerMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaMadeCall] | UnsetType = UNSET


class OllamaChatAnswer(OllamaAnswer, kw_only=True):
    """An answer of /api/chat, or what a line of its stream adds."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaAnswer, kw_only=True):
    """An answer of /api/generate, or what a line of its stream adds."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaEmbedRequest(OllamaRequest, kw_only=True):
    """POST /api/embed: a text or texts, of which too long ones lose their end unless ``truncate`` is false."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class OllamaEmbedAnswer(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsRequest(OllamaRequest, kw_only=True):
    """POST /api/embeddings, the older route: one text."""

    prompt: str | None = None


class OllamaEmbeddingsAnswer(msgspec.Struct):
    embedding: list[float]


class OllamaDetails(msgspec.Struct, kw_only=True):
    """``parameter_size`` is empty: no checkpoint says it before it is loaded."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class OllamaModel(msgspec.Struct, kw_only=True):
    """A served model. ``size`` are the bytes of its weights once it is loaded."""

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(msgspec.Struct):
    models: list[OllamaModel]


class OllamaRunning(msgspec.Struct, kw_only=True):
    """A model in memory, where it stays as long as the server runs."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: datetime
    size_vram: int
    context_length: int


class OllamaProcesses(msgspec.Struct):
    models: list[OllamaRunning]


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """POST /api/show. ``name`` is the older word for ``model``."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None


class OllamaShown(msgspec.Struct, kw_only=True):
    """What is known of a model. ``template`` is its chat template, in Jinja."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: datetime


class OllamaPullRequest(msgspec.Struct, kw_only=True):
    """POST /api/pull. ``name`` is the older word for ``model``."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


class OllamaProgress(msgspec.Struct):
    """How far a model is pulled."""

    status: Literal["success"] = "success"


class OllamaVersion(msgspec.Struct, kw_only=True):
    """``version``: the release of Ollama whose API this is, by which clients choose what to send."""

    version: str
    lsv: str


class OllamaError(msgspec.Struct):
    error: str
