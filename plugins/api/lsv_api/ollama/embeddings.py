"""POST /api/embed and POST /api/embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv_api.http.context import Exchange
from lsv_api.http.reply import json_response
from lsv_api.ollama.keeping import check_keep_alive
from lsv_api.ollama.naming import find_model, naming_embed_fields, naming_embeddings_fields
from lsv_api.ollama.records import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from lsv_api.ollama.writing import nanoseconds
from lsv_api.openai.embeddings import embed_prompts
from lsv_api.records.pooling import EmbeddingRequest

CUT = -1
"""``truncate_prompt_tokens`` of texts that lose what does not fit the context."""


async def embed(exchange: Exchange) -> HTTPResponse:
    """Vectors of unit length, one a text."""
    body = await exchange.body(OllamaEmbedRequest)
    served = find_model(exchange, body.model)
    check_keep_alive(body.keep_alive)
    asked_at = time.monotonic()
    vectors: Sequence[Vector] = ()
    if body.input:
        request = EmbeddingRequest(
            input=[*body.input] if isinstance(body.input, list) else body.input,
            dimensions=body.dimensions,
            truncate_prompt_tokens=None if body.truncate is False else CUT,
            normalize=True,
        )
        with naming_embed_fields():
            vectors = await embed_prompts(request, served, exchange)
    model, size = body.model or served.name, sum(map(len, vectors))
    return await exchange.prepare(size, _answer, vectors, model, exchange, asked_at)


def _answer(vectors: Sequence[Vector], model: str, exchange: Exchange, asked_at: float) -> HTTPResponse:
    """Written vector by vector: millions of numbers at once would keep the interpreter's lock."""
    written: list[Any] = [msgspec.Raw(msgspec.json.encode(vector)) for vector in vectors]
    return json_response(
        OllamaEmbedAnswer(
            model=model,
            embeddings=written,
            total_duration=nanoseconds(time.monotonic() - exchange.started),
            load_duration=nanoseconds(asked_at - exchange.started),
            prompt_eval_count=exchange.prompt_tokens,
        )
    )


async def embeddings(exchange: Exchange) -> OllamaEmbeddingsAnswer:
    """One vector, as long as the model made it; none of an empty text."""
    body = await exchange.body(OllamaEmbeddingsRequest)
    served = find_model(exchange, body.model)
    check_keep_alive(body.keep_alive)
    if not body.prompt:
        return OllamaEmbeddingsAnswer([])
    request = EmbeddingRequest(input=body.prompt, truncate_prompt_tokens=CUT, normalize=False)
    with naming_embeddings_fields():
        (vector,) = await embed_prompts(request, served, exchange)
    return OllamaEmbeddingsAnswer(list(vector))
