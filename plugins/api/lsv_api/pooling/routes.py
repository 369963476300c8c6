"""POST /pooling and /classify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv.request.pooling import PoolingTask
from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange
from lsv_api.http.reply import json_response
from lsv_api.openai.embeddings import packer
from lsv_api.openai.inputs import encode_inputs
from lsv_api.pooling.asking import EnvelopeFields, envelope, pool_prompts, pooling_params
from lsv_api.records.pooling import (
    Classified,
    ClassifyRequest,
    ClassifyResponse,
    Pooled,
    PoolingRequest,
    PoolingResponse,
)
from lsv_base.errors import BadRequest

_MOST_NUMBERS = 1 << 22
"""In the answer to one request: each token may have thousands."""


async def pool(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(PoolingRequest)
    served = exchange.served(body.model)
    pooler = served.admission.pooler
    own: PoolingTask = "token_embed" if pooler.own == "embed" else pooler.own
    params = pooling_params(body, body.task or own, normalize=body.normalize, dimensions=body.dimensions)
    params = served.admission.check_pooling(params)
    pack = packer(body)
    prompts = await encode_inputs(body, served, exchange)
    width = (pooler.size or 1) if params.task == "token_embed" else len(pooler.labels)
    if params.kind == "all" and (numbers := width * sum(len(prompt.ids) for prompt in prompts)) > _MOST_NUMBERS:
        raise BadRequest(
            f"{body.field}: {numbers} numbers are too many for one answer, which has a vector for every token: at most "
            f"{_MOST_NUMBERS} are given",
            param=body.field,
        )
    request, vectors = await pool_prompts(body, exchange, served, prompts, params, field=body.field)
    task = params.task or own

    def write(prompt: Prompt, vector: Vector) -> Any:
        return pooler.rows(task, prompt.ids, vector) if pack is None else pack(vector)

    made = envelope(exchange, served, "pool")
    return await exchange.prepare(sum(map(len, vectors)), _answer, request.prompts, vectors, write, made)


def _answer(
    prompts: Sequence[Prompt], vectors: Sequence[Vector], write: Callable[[Prompt, Vector], Any], made: EnvelopeFields
) -> HTTPResponse:
    """Written vector by vector: millions of numbers at once would keep the interpreter's lock."""
    written: list[Any] = [
        msgspec.Raw(msgspec.json.encode(write(prompt, vector))) for prompt, vector in zip(prompts, vectors, strict=True)
    ]
    data = [Pooled(index=index, data=one) for index, one in enumerate(written)]
    return json_response(PoolingResponse(data=data, **made))


async def classify(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(ClassifyRequest)
    served = exchange.served(body.model)
    params = pooling_params(body, "classify")
    served.admission.check_pooling(params)
    prompts = await encode_inputs(body, served, exchange)
    _, vectors = await pool_prompts(body, exchange, served, prompts, params, field=body.field)
    labels = served.admission.pooler.labels
    data = [_classified(index, vector, labels) for index, vector in enumerate(vectors)]
    return json_response(ClassifyResponse(data=data, **envelope(exchange, served, "classify")))


def _classified(index: int, vector: Vector, labels: tuple[str, ...]) -> Classified:
    best = max(range(len(vector)), key=vector.__getitem__)
    label = labels[best] if best < len(labels) else None
    return Classified(index=index, label=label, probs=list(vector), num_classes=len(vector))
