"""All routes of the API, as data: what is served, what is documented and what is counted come from here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from sanic.response import HTTPResponse

from lsv_api.admin import adapters, profile, sleep, status
from lsv_api.http.context import Exchange
from lsv_api.openai import chat, completions, embeddings, tokens
from lsv_api.pooling import routes as pooled
from lsv_api.pooling import scoring
from lsv_api.records import pooling, requests, responses
from lsv_api.speech import routes as speech

Handler = Callable[[Exchange], Awaitable[HTTPResponse | None]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route."""

    method: Literal["GET", "POST"]
    """GET routes also answer HEAD."""

    path: str
    """The path, in Sanic's pattern language."""

    handler: Handler
    """Answers it."""

    summary: str
    """What it does, for the description of the API."""

    request: type | None = None
    """Record of the body."""

    response: type | None = None
    """Record of the answer; None: it is not JSON."""

    verbose: type | None = None
    """Record of a longer form of the answer."""

    streams: type | None = None
    """Record of the events of a streamed answer."""

    open: Literal["never", "monitoring", "always"] = "never"
    """Whether it is open without a key: those for monitoring are, unless the operator protects them."""

    probe: bool = False
    """Whether it reports the state of the server. It answers during draining and is logged at level debug."""

    form: bool = False
    """Whether the body is a form; otherwise it is JSON."""

    admin: bool = False
    """Whether it is for the operator alone, where keys are asked for."""

    transcribes: bool = False
    """Whether it is described only where a served model transcribes."""


ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat.create_chat_completion,
        summary="Answer a conversation",
        request=requests.ChatRequest,
        response=responses.ChatResponse,
        streams=responses.ChatChunk,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions.create_completion,
        summary="Continue a text",
        request=requests.CompletionRequest,
        response=responses.CompletionResponse,
        streams=responses.CompletionResponse,
    ),
    Route(
        method="POST",
        path="/v1/embeddings",
        handler=embeddings.create_embeddings,
        summary="Turn texts into vectors",
        request=requests.EmbeddingRequest,
        response=responses.EmbeddingResponse,
    ),
    Route(
        method="POST",
        path="/pooling",
        handler=pooled.pool,
        summary="What the model makes of every token of a text",
        request=pooling.PoolingRequest,
        response=pooling.PoolingResponse,
    ),
    Route(
        method="POST",
        path="/classify",
        handler=pooled.classify,
        summary="Label texts",
        request=pooling.ClassifyRequest,
        response=pooling.ClassifyResponse,
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=scoring.score,
            summary="Score how well pairs of texts go together",
            request=pooling.ScoreRequest,
            response=pooling.ScoreResponse,
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=scoring.rerank,
            summary="Order documents by how well they answer a query",
            request=pooling.RerankRequest,
            response=pooling.RerankResponse,
        )
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    ),
    Route(
        method="POST",
        path="/v1/audio/transcriptions",
        handler=speech.create_transcription,
        summary="Transcribe audio",
        request=requests.SpeechRequest,
        response=responses.Transcription,
        verbose=responses.VerboseTranscription,
        streams=responses.TranscriptEvent,
        form=True,
        transcribes=True,
    ),
    Route(
        method="POST",
        path="/v1/audio/translations",
        handler=speech.create_translation,
        summary="Translate audio into English text",
        request=requests.SpeechRequest,
        response=responses.Transcription,
        verbose=responses.VerboseTranscription,
        streams=responses.TranscriptEvent,
        form=True,
        transcribes=True,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=status.list_models,
        summary="List the served models",
        response=responses.ModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/<name:path>",
        handler=status.show_model,
        summary="Show one model",
        response=responses.ModelCard,
    ),
    Route(
        method="POST",
        path="/v1/load_lora_adapter",
        handler=adapters.load_adapter,
        summary="Serve an adapter by a name, where the operator allows that",
        request=requests.LoadAdapterRequest,
    ),
    Route(
        method="POST",
        path="/v1/unload_lora_adapter",
        handler=adapters.unload_adapter,
        summary="Serve an adapter no more; answers that have begun go on",
        request=requests.UnloadAdapterRequest,
    ),
    Route(
        method="POST",
        path="/sleep",
        handler=sleep.sleep,
        summary="Give the engines' memory back: level=1 keeps the weights on the host, level=2 forgets them",
        admin=True,
    ),
    Route(
        method="POST",
        path="/wake_up",
        handler=sleep.wake_up,
        summary="Take the engines' memory again, all or for tags=weights or tags=kv_cache",
        admin=True,
    ),
    Route(
        method="POST",
        path="/start_profile",
        handler=profile.start_profile,
        summary="Record a profile of the engines from now on",
        admin=True,
    ),
    Route(
        method="POST",
        path="/stop_profile",
        handler=profile.stop_profile,
        summary="Write the profile",
        admin=True,
    ),
    Route(
        method="GET",
        path="/is_sleeping",
        handler=sleep.show_sleeping,
        summary="Whether an engine has given memory back",
        response=responses.Sleeping,
        probe=True,
    ),
    Route(
        method="POST",
        path="/tokenize",
        handler=tokens.tokenize,
        summary="Turn a text or a conversation into token ids",
        request=requests.TokenizeRequest,
        response=responses.TokenizeResponse,
    ),
    Route(
        method="POST",
        path="/detokenize",
        handler=tokens.detokenize,
        summary="Turn token ids into text",
        request=requests.DetokenizeRequest,
        response=responses.DetokenizeResponse,
    ),
    Route(
        method="GET",
        path="/live",
        handler=status.live,
        summary="200 as long as the process answers",
        response=responses.Alive,
        open="always",
        probe=True,
    ),
    Route(
        method="GET",
        path="/ready",
        handler=status.health,
        summary="200 when every model is ready, 503 with the progress before",
        response=responses.Health,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/health",
        handler=status.health,
        summary="The same as /ready",
        response=responses.Health,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/version",
        handler=status.show_version,
        summary="Version of the server, fingerprints of its engines",
        response=responses.Version,
        probe=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=status.metrics,
        summary="Metrics in Prometheus text format",
        open="monitoring",
        probe=True,
    ),
)
