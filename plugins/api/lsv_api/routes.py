"""All routes of the API, as data: what is served, what is documented and what is counted come from here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from sanic.response import HTTPResponse

from lsv_api.admin import status
from lsv_api.http.context import Exchange
from lsv_api.openai import chat, completions, embeddings, tokens
from lsv_api.records import requests as asked
from lsv_api.records import responses as given
from lsv_api.speech import routes as speech

Handler = Callable[[Exchange], Awaitable[HTTPResponse | None]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. ``response`` None: no JSON. ``public``: without key. ``probe``: answered while draining.

    ``verbose`` is a longer form of the response. ``form``: the request is one, else JSON. ``spoken``: described only
    where a served model writes down what is said.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    summary: str
    request: type | None = None
    response: type | None = None
    verbose: type | None = None
    streams: type | None = None
    public: bool = False
    probe: bool = False
    form: bool = False
    spoken: bool = False


ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat.create_chat_completion,
        summary="Answer a conversation",
        request=asked.ChatRequest,
        response=given.ChatResponse,
        streams=given.ChatChunk,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions.create_completion,
        summary="Continue a text",
        request=asked.CompletionRequest,
        response=given.CompletionResponse,
        streams=given.CompletionResponse,
    ),
    Route(
        method="POST",
        path="/v1/embeddings",
        handler=embeddings.create_embeddings,
        summary="Turn texts into vectors",
        request=asked.EmbeddingRequest,
        response=given.EmbeddingResponse,
    ),
    Route(
        method="POST",
        path="/v1/audio/transcriptions",
        handler=speech.create_transcription,
        summary="Transcribe audio",
        request=asked.SpeechRequest,
        response=given.Transcription,
        verbose=given.VerboseTranscription,
        streams=given.TranscriptEvent,
        form=True,
        spoken=True,
    ),
    Route(
        method="POST",
        path="/v1/audio/translations",
        handler=speech.create_translation,
        summary="Translate audio to English text",
        request=asked.SpeechRequest,
        response=given.Transcription,
        verbose=given.VerboseTranscription,
        streams=given.TranscriptEvent,
        form=True,
        spoken=True,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=status.list_models,
        summary="List the served models",
        response=given.ModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/<name:path>",
        handler=status.show_model,
        summary="Show one model",
        response=given.ModelCard,
    ),
    Route(
        method="POST",
        path="/tokenize",
        handler=tokens.tokenize,
        summary="Turn a text or a conversation into token ids",
        request=asked.TokenizeRequest,
        response=given.TokenizeResponse,
    ),
    Route(
        method="POST",
        path="/detokenize",
        handler=tokens.detokenize,
        summary="Turn token ids into text",
        request=asked.DetokenizeRequest,
        response=given.DetokenizeResponse,
    ),
    Route(
        method="GET",
        path="/live",
        handler=status.live,
        summary="200 as long as the process answers",
        response=given.Alive,
        public=True,
        probe=True,
    ),
    Route(
        method="GET",
        path="/ready",
        handler=status.health,
        summary="200 when every model is ready, 503 with the progress before",
        response=given.Health,
        probe=True,
    ),
    Route(
        method="GET",
        path="/health",
        handler=status.health,
        summary="The same as /ready",
        response=given.Health,
        probe=True,
    ),
    Route(
        method="GET",
        path="/version",
        handler=status.show_version,
        summary="Version of the server, fingerprints of its engines",
        response=given.Version,
        probe=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=status.metrics,
        summary="Metrics in Prometheus text format",
        probe=True,
    ),
)
