"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv.request.params import PoolingParams
from lsv.request.pooling import Pooler
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import json_response
from lsv_api.openai.inputs import encode_inputs
from lsv_api.openai.pieces import Pieces
from lsv_api.openai.sampling import priority_of, tenancy
from lsv_api.records.pooling import EmbeddingRequest, VectorRequest
from lsv_api.records.responses import Embedding, EmbeddingResponse, Usage
from lsv_base.errors import BadRequest


async def create_embeddings(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(EmbeddingRequest)
    served = exchange.served(body.model)
    write = packer(body) or list
    vectors = await embed_prompts(body, served, exchange)
    size = sum(map(len, vectors))
    return await exchange.prepare(size, _answer, vectors, write, served.name, exchange)


async def embed_prompts(body: EmbeddingRequest, served: Served, exchange: Exchange) -> list[Vector]:
    """The vector of each prompt of a body, for all contracts. Raises ``BadRequest`` with the body's fields."""
    params = PoolingParams(
        task="embed",
        dimensions=body.dimensions,
        normalize=_normalize(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side or "right",
    )
    admission = served.admission
    admission.check_pooling(params)
    in_pieces = _reads_pieces(body, admission.pooler)
    prompts = await encode_inputs(body, served, exchange, _before(body, admission.pooler), fits=not in_pieces)
    pieces = None
    if in_pieces and any(len(prompt.ids) > admission.longest_text for prompt in prompts):
        pieces = Pieces.cut(prompts, admission, exchange.api.options.limits.prompts)
        prompts, params = [*pieces.prompts], msgspec.structs.replace(params, normalize=False)
    request = RequestSpec(
        prompts=tuple(prompts),
        pooling=params,
        request_id=f"embd-{exchange.key}",
        priority=priority_of(body),
        trace=exchange.trace,
        **tenancy(exchange, body.cache_salt),
    )
    request = admission.admit(request, field=body.field)
    await exchange.begin(request)
    vectors = await served.client.encode(request)
    if pieces is None:
        return vectors
    normalize = _normalize(body)
    scaled = admission.pooler.normalize if normalize is None else normalize
    return await exchange.prepare(sum(map(len, vectors)), pieces.join, vectors, normalize=scaled)


def _before(body: EmbeddingRequest, pooler: Pooler) -> str:
    """What goes before texts. Raises ``BadRequest`` for a name beside a conversation, whose template writes all."""
    if body.messages is None:
        return pooler.prompt(body.prompt_name)
    if body.prompt_name is not None:
        raise BadRequest("prompt_name is for input: a chat template writes what goes before messages",
                         param="prompt_name")  # fmt: skip
    return ""


def _reads_pieces(body: EmbeddingRequest, pooler: Pooler) -> bool:
    """Whether texts over the context are read in pieces. Raises ``BadRequest`` where that can't be done."""
    asked = body.enable_chunked_processing
    if not asked:
        return asked is None and pooler.pieces and body.messages is None and body.truncate_prompt_tokens is None
    for other in ("messages", "truncate_prompt_tokens"):
        if getattr(body, other) is not None:
            raise BadRequest(f"enable_chunked_processing reads whole texts of input: leave out {other}",
                             param="enable_chunked_processing")  # fmt: skip
    return True


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


def packer(body: VectorRequest) -> Callable[[Vector], str] | None:
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
