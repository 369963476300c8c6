"""Ollama's routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sanic.response import HTTPResponse

from lsv_api.admin.status import show_index
from lsv_api.contract import Contract, Route
from lsv_api.http.context import Exchange
from lsv_api.ollama import answering, embeddings, models, records, refusing
from lsv_api.ollama.naming import write_error
from lsv_api.ollama.writing import LINES
from lsv_api.records.responses import Index

GREETING = "Ollama is running"
"""By these words clients know a server of this API."""


async def greet(exchange: Exchange) -> HTTPResponse:
    """The index for clients that ask for JSON by name, Ollama's greeting for all others."""
    if "application/json" in exchange.request.headers.get("accept", ""):
        return await show_index(exchange)
    return HTTPResponse(GREETING, content_type="text/plain; charset=utf-8", headers={"vary": "Accept"})


ROUTES = (
    Route(
        method="POST",
        path="/api/chat",
        handler=answering.chat,
        summary="Answer a conversation, as Ollama does",
        request=records.OllamaChatRequest,
        response=records.OllamaChatAnswer,
        streams=records.OllamaChatAnswer,
        stream_type=LINES.content_type,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="POST",
        path="/api/generate",
        handler=answering.generate,
        summary="Answer a prompt, as Ollama does",
        request=records.OllamaGenerateRequest,
        response=records.OllamaGenerateAnswer,
        streams=records.OllamaGenerateAnswer,
        stream_type=LINES.content_type,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="POST",
        path="/api/embed",
        handler=embeddings.embed,
        summary="Turn texts into vectors, as Ollama does",
        request=records.OllamaEmbedRequest,
        response=records.OllamaEmbedAnswer,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="POST",
        path="/api/embeddings",
        handler=embeddings.embeddings,
        summary="Turn a text into a vector, as older Ollamas do",
        request=records.OllamaEmbeddingsRequest,
        response=records.OllamaEmbeddingsAnswer,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="POST",
        path="/api/show",
        handler=models.show,
        summary="What is known of a model",
        request=records.OllamaShowRequest,
        response=records.OllamaShown,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="POST",
        path="/api/pull",
        handler=refusing.pull,
        summary="Success for a model that is served; others are the operator's to serve",
        request=records.OllamaPullRequest,
        response=records.OllamaProgress,
        streams=records.OllamaProgress,
        stream_type=LINES.content_type,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="GET",
        path="/api/tags",
        handler=models.list_tags,
        summary="List the served models, as Ollama does",
        response=records.OllamaTags,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="GET",
        path="/api/ps",
        handler=models.list_processes,
        summary="List the models in memory",
        response=records.OllamaProcesses,
        errors=write_error,
        error=records.OllamaError,
    ),
    Route(
        method="GET",
        path="/api/version",
        handler=models.show_version,
        summary="The release of Ollama whose API this is",
        response=records.OllamaVersion,
        errors=write_error,
        error=records.OllamaError,
        probe=True,
    ),
    Route(
        method="GET",
        path="/",
        handler=greet,
        summary="Name, models and routes for clients that accept JSON by name; else Ollama's greeting",
        response=Index,
        probe=True,
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=(*ROUTES, *refusing.refusals()))
