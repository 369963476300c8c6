"""OpenAI's routes for texts: chats, completions, vectors, models and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.admin import status
from lsv_api.contract import Contract, Route
from lsv_api.openai import chat, completions, embeddings, tokens
from lsv_api.records import pooling, requests, responses
from lsv_api.records.models import MessagesModel, MessagesModelList

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
        request=pooling.EmbeddingRequest,
        response=responses.EmbeddingResponse,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=status.list_models,
        summary="List the served models",
        response=responses.ModelList,
        verbose=MessagesModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/<name:path>",
        handler=status.show_model,
        summary="Show one model",
        response=responses.ModelCard,
        verbose=MessagesModel,
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
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
