"""POST /score and /rerank: how well texts go together, by a model that reads both, or by the vectors of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.client import Vector
from lsv.errors import BadRequest
from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import json_response
from lsv_api.pooling.asking import envelope, pool_prompts, pooling_params
from lsv_api.records.pooling import (
    Document,
    PooledRequest,
    Ranked,
    RerankRequest,
    RerankResponse,
    Scored,
    ScoreRequest,
    ScoreResponse,
    Texts,
)


class Pairs(msgspec.Struct, frozen=True):
    """Texts to compare: each of ``seconds`` with the ``firsts`` of its place, or all with the only one."""

    firsts: Sequence[str]
    seconds: Sequence[str]
    fields: tuple[str, str]
    """What the request calls them."""

    def check(self, most: int) -> None:
        """Raises ``BadRequest`` for lists that are empty, too long or do not match."""
        for texts, field in zip((self.firsts, self.seconds), self.fields, strict=True):
            if not texts:
                raise BadRequest(f"{field} must not be empty", param=field)
            if len(texts) > most:
                raise BadRequest(
                    f"{field} takes at most {most} texts (--api-max-prompts), got {len(texts)}", param=field
                )
        if len(self.firsts) not in (1, len(self.seconds)):
            first, second = self.fields
            raise BadRequest(
                f"{first} must hold one text, or as many as {second}: got {len(self.firsts)} and {len(self.seconds)}",
                param=first,
            )

    def first_of(self, index: int) -> int:
        """The place of the text that the second one at ``index`` is compared with."""
        return 0 if len(self.firsts) == 1 else index


async def score(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(ScoreRequest)
    served = exchange.served(body.model)
    pairs = Pairs(_listed(body.text_1), _listed(body.text_2), ("text_1", "text_2"))
    scores = await _score(exchange, served, body, pairs)
    data = [Scored(index=index, score=value) for index, value in enumerate(scores)]
    return json_response(ScoreResponse(data=data, **envelope(exchange, served, "score")))


async def rerank(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(RerankRequest)
    served = exchange.served(body.model)
    if body.top_n < 0:
        raise BadRequest(f"top_n must be at least 0, got {body.top_n}", param="top_n")
    scores = await _score(exchange, served, body, Pairs((body.query,), body.documents, ("query", "documents")))
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [
        Ranked(
            index=index,
            relevance_score=scores[index],
            document=Document(text=body.documents[index]) if body.return_documents else None,
        )
        for index in order
    ]
    made = envelope(exchange, served, "rerank")
    return json_response(RerankResponse(id=made["id"], model=made["model"], usage=made["usage"], results=results))


def _listed(texts: Texts) -> Sequence[str]:
    return (texts,) if isinstance(texts, str) else texts


async def _score(exchange: Exchange, served: Served, body: PooledRequest, pairs: Pairs) -> list[float]:
    """A score for each pair. Raises ``BadRequest`` before anything is tokenised where that can be known."""
    pairs.check(exchange.api.options.limits.prompts)
    pooler, most = served.admission.pooler, exchange.api.options.limits.uncut
    pooler.check("score", served.admission.model)
    longest = max(len(text) for text in (*pairs.firsts, *pairs.seconds))
    if longest > most:
        field = pairs.fields[any(len(text) == longest for text in pairs.seconds)]
        raise BadRequest(f"{field}: {longest} characters are too many to be tokenised: at most {most} are", param=field)
    size = sum(map(len, (*pairs.firsts, *pairs.seconds)))
    if pooler.task == "classify":
        params = pooling_params(body, "score", truncated=True)
        prompts = await exchange.prepare(size, _encode_pairs, served, body, pairs)
        _, vectors = await pool_prompts(body, exchange, served, prompts, params, field=pairs.fields[1])
        return [vector[0] for vector in vectors]
    params = pooling_params(body, "embed", normalize=True)
    prompts = await exchange.prepare(size, _encode_texts, served, body, pairs)
    _, vectors = await pool_prompts(body, exchange, served, prompts, params, field=pairs.fields[1])
    return await exchange.prepare(sum(map(len, vectors)), _compare, pairs, vectors)


def _encode_pairs(served: Served, body: PooledRequest, pairs: Pairs) -> list[Prompt]:
    admission, tokenizer = served.admission, served.client.tokenizer
    keep = body.truncate_prompt_tokens
    keep = admission.max_model_len if keep == -1 else keep
    encoded = tokenizer.encode_pairs(pairs.firsts, pairs.seconds, keep, body.truncation_side or "right")
    for ids, _ in encoded:
        if len(ids) > admission.max_model_len:
            raise admission.too_long(len(ids), pairs.fields[1])
    return [Prompt(ids=tuple(ids), second=second) for ids, second in encoded]


def _encode_texts(served: Served, body: PooledRequest, pairs: Pairs) -> list[Prompt]:
    admission, tokenizer = served.admission, served.client.tokenizer
    prompts = []
    for texts, field in zip((pairs.firsts, pairs.seconds), pairs.fields, strict=True):
        for text in texts:
            if body.truncate_prompt_tokens is None:
                ids = admission.encode(text, tokenizer, special=True, field=field)
            else:
                ids = tokenizer.encode(text)
            prompts.append(Prompt(ids=tuple(ids)))
    return prompts


def _compare(pairs: Pairs, vectors: Sequence[Vector]) -> list[float]:
    """The products of the vectors of each pair; ``vectors`` are those of all firsts, then of all seconds."""
    firsts, seconds = vectors[: len(pairs.firsts)], vectors[len(pairs.firsts) :]
    return [_product(firsts[pairs.first_of(index)], second) for index, second in enumerate(seconds)]


def _product(first: Vector, second: Vector) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))
