"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv.errors import BadRequest
from lsv.request.params import PoolingParams
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange
from lsv_api.http.reply import json_response
from lsv_api.openai.prompts import encode_prompts
from lsv_api.openai.sampling import priority_of, tenancy
from lsv_api.records.pooling import PoolingRequest
from lsv_api.records.requests import EmbeddingRequest
from lsv_api.records.responses import Embedding, EmbeddingResponse, Usage


async def create_embeddings(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(EmbeddingRequest)
    served = exchange.served(body.model)
    params = PoolingParams(
        task="embed",
        dimensions=body.dimensions,
        normalize=_normalize(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side or "right",
    )
    served.admission.check_pooling(params)
    before = served.admission.pooler.prompt(body.prompt_name)
    prompts = await encode_prompts(body, served, exchange, before)
    write = packer(body) or list
    request = RequestSpec(
        prompts=tuple(prompts),
        pooling=params,
        request_id=f"embd-{exchange.key}",
        priority=priority_of(body),
        trace=exchange.trace,
        **tenancy(exchange, body.cache_salt),
    )
    request = served.admission.admit(request, field="input")
    exchange.count_prompt(request.prompt_tokens)
    vectors = await served.client.encode(request)
    size = sum(map(len, vectors))
    return await exchange.prepare(size, _answer, vectors, write, served.name, exchange)


def _answer(vectors: Sequence[Vector], write: Callable[[Vector], Any], model: str, exchange: Exchange) -> HTTPResponse:
    """Written vector by vector: millions of numbers at once would keep the interpreter's lock."""
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


def _normalize(body: EmbeddingRequest) -> bool | None:
    """Raises ``BadRequest`` where both names of the field are given and differ."""
    if body.normalize is None or body.use_activation in (None, body.normalize):
        return body.use_activation if body.normalize is None else body.normalize
    raise BadRequest("normalize and use_activation say the same of vectors: give one of them", param="normalize")


def packer(body: EmbeddingRequest | PoolingRequest) -> Callable[[Vector], str] | None:
    """Writes vectors as base64: little-endian float32, as the OpenAI client decodes it, unless asked otherwise.

    None where numbers are asked for. Raises ``BadRequest`` for a form that only base64 has.
    """
    if body.encoding_format != "base64":
        for field in ("embed_dtype", "endianness"):
            if getattr(body, field):
                raise BadRequest(f"{field} requires encoding_format base64; leave it out for numbers", param=field)
        return None
    order = {"big": ">", "native": "="}.get(body.endianness or "", "<")

    def write(vector: Vector) -> str:
        if body.embed_dtype == "bfloat16":
            packed = struct.pack(f"{order}{len(vector)}H", *map(_bfloat16, vector))
        else:
            packed = _pack(vector, order, body.embed_dtype or "float32")
        return base64.b64encode(packed).decode("ascii")

    return write


def _pack(vector: Vector, order: str, dtype: str) -> bytes:
    try:
        return struct.pack(f"{order}{len(vector)}{'e' if dtype == 'float16' else 'f'}", *vector)
    except OverflowError:
        raise BadRequest(
            f"embed_dtype {dtype} can't hold these vectors; ask for bfloat16", param="embed_dtype"
        ) from None


def _bfloat16(value: float) -> int:
    """The upper half of a float32's bits, rounded to nearest even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF
