"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv.request.params import PoolingParams
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import json_response
from lsv_api.openai.prompts import encode_prompts
from lsv_api.openai.sampling import tenancy
from lsv_api.records.requests import EmbeddingRequest
from lsv_api.records.responses import Embedding, EmbeddingResponse, Usage


async def create_embeddings(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(EmbeddingRequest)
    served = exchange.served(body.model)
    if body.dimensions is not None:
        raise Unsupported("dimensions is not available: vectors have the model's own size", param="dimensions")
    prompts = await encode_prompts(body, served, exchange.api)
    params = PoolingParams(truncate_prompt_tokens=body.truncate_prompt_tokens)
    request = RequestSpec(
        prompts=tuple(prompts),
        pooling=params,
        request_id=f"embd-{exchange.key}",
        trace=exchange.trace,
        **tenancy(exchange),
    )
    request = served.admission.admit(request, field="input")
    exchange.count_prompt(request.prompt_tokens)
    vectors = await served.client.encode(request)
    size = sum(map(len, vectors))
    return await exchange.api.pool.run(size, _answer, vectors, body.encoding_format, served.name, exchange)


def _answer(vectors: Sequence[Vector], encoding: str | None, model: str, exchange: Exchange) -> HTTPResponse:
    """Written vector by vector: millions of numbers at once would keep the interpreter's lock."""
    write = _base64 if encoding == "base64" else list
    written = [msgspec.Raw(msgspec.json.encode(write(vector))) for vector in vectors]
    return json_response(
        EmbeddingResponse(
            id=f"embd-{exchange.key}",
            created=exchange.created,
            model=model,
            data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(written)],
            usage=Usage(prompt_tokens=exchange.prompt_tokens, total_tokens=exchange.prompt_tokens),
        )
    )


def _base64(vector: Sequence[float]) -> str:
    """Little-endian float32, as the OpenAI client decodes it."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
