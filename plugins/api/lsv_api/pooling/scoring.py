"""POST /score and /rerank: how well texts go together, by a model that reads both, or by the vectors of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.admission import check_media_size
from lsv.engine.client import Vector
from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import json_response
from lsv_api.openai.asking import naming_fields
from lsv_api.openai.conversation import encode_chat
from lsv_api.pooling.asking import envelope, pool_prompts, pooling_params
from lsv_api.records.pooling import (
    Content,
    Document,
    InputRequest,
    Item,
    PairsRequest,
    PooledRequest,
    Ranked,
    RerankRequest,
    RerankResponse,
    Scored,
    ScoreRequest,
    ScoreResponse,
)
from lsv_api.records.requests import Message
from lsv_base.errors import BadRequest

_CUT = "truncate_prompt_tokens"


class Pairs(msgspec.Struct, frozen=True):
    """What to compare: each of ``seconds`` with the ``firsts`` of its place, or all with the only one."""

    firsts: Sequence[Item]
    seconds: Sequence[Item]
    fields: tuple[str, str]
    """What the request calls them."""

    @property
    def texts(self) -> list[str]:
        return [item for item in (*self.firsts, *self.seconds) if isinstance(item, str)]

    @property
    def all_texts(self) -> bool:
        return len(self.texts) == len(self.firsts) + len(self.seconds)

    def items(self) -> Iterator[tuple[Item, str]]:
        """All firsts, then all seconds, each with its place in the request."""
        for items, field in zip((self.firsts, self.seconds), self.fields, strict=True):
            for index, item in enumerate(items):
                yield item, f"{field}[{index}]" if isinstance(items, list) else field

    def check(self, most: int) -> None:
        """Raises ``BadRequest`` for lists that are empty, too long or do not match."""
        for items, field in zip((self.firsts, self.seconds), self.fields, strict=True):
            if not items:
                raise BadRequest(f"{field} must not be empty", param=field)
            if len(items) > most:
                raise BadRequest(
                    f"{field} takes at most {most} texts (--api-max-prompts), got {len(items)}", param=field
                )
        if len(self.firsts) not in (1, len(self.seconds)):
            first, second = self.fields
            raise BadRequest(
                f"{first} must hold one text, or as many as {second}: got {len(self.firsts)} and {len(self.seconds)}",
                param=first,
            )

    def check_lengths(self, most: int) -> None:
        """Raises ``BadRequest`` for a text of more than ``most`` characters."""
        for items, field in zip((self.firsts, self.seconds), self.fields, strict=True):
            longest = max((len(item) for item in items if isinstance(item, str)), default=0)
            if longest > most:
                raise BadRequest(
                    f"{field}: {longest} characters are too many to be tokenised: at most {most} are", param=field
                )

    def first_of(self, index: int) -> int:
        """The place of what the second one at ``index`` is compared with."""
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
            document=_shown(body.documents[index]) if body.return_documents else None,
        )
        for index in order
    ]
    made = envelope(exchange, served, "rerank")
    return json_response(RerankResponse(id=made["id"], model=made["model"], usage=made["usage"], results=results))


def _listed(items: Item | list[Item]) -> Sequence[Item]:
    return items if isinstance(items, list) else (items,)


def _shown(document: Item) -> Document | None:
    """A document as the answer shows it: its text, without media."""
    if isinstance(document, str):
        return Document(text=document)
    texts = [part if isinstance(part, str) else part.text for part in document.content]
    return Document(text="\n".join(filter(None, texts))) if any(texts) else None


async def _score(exchange: Exchange, served: Served, body: PairsRequest, pairs: Pairs) -> list[float]:
    """A score for each pair. Raises ``BadRequest`` before anything is tokenised where that can be known."""
    pairs.check(exchange.api.options.limits.prompts)
    pooler = served.admission.pooler
    pooler.check("score", served.admission.model)
    pairs.check_lengths(exchange.api.options.limits.uncut)
    if pooler.task == "classify":
        return await _score_pairs(exchange, served, body, pairs)
    params = pooling_params(body, "embed", normalize=True)
    prompts = await _encode_items(exchange, served, body, pairs)
    _, vectors = await pool_prompts(body, exchange, served, prompts, params, field=pairs.fields[1])
    return await exchange.prepare(sum(map(len, vectors)), _compare, pairs, vectors)


async def _score_pairs(exchange: Exchange, served: Served, body: PairsRequest, pairs: Pairs) -> list[float]:
    """Scores of a model that reads both texts of a pair."""
    if not pairs.all_texts:
        raise BadRequest(
            f"{served.name} reads the two texts of a pair as one prompt: send texts instead of content parts",
            param=pairs.fields[1],
        )
    params = pooling_params(body, "score", truncated=True)
    prompts = await exchange.prepare(sum(map(len, pairs.texts)), _encode_pairs, served, body, pairs)
    _, vectors = await pool_prompts(body, exchange, served, prompts, params, field=pairs.fields[1])
    return [vector[0] for vector in vectors]


def _encode_pairs(served: Served, body: PooledRequest, pairs: Pairs) -> list[Prompt]:
    admission, tokenizer = served.admission, served.client.tokenizer
    keep = body.truncate_prompt_tokens
    keep = admission.max_model_len if keep == -1 else keep
    texts = pairs.texts
    firsts, seconds = texts[: len(pairs.firsts)], texts[len(pairs.firsts) :]
    encoded = tokenizer.encode_pairs(firsts, seconds, keep, body.truncation_side or "right")
    for ids, _ in encoded:
        if len(ids) > admission.max_model_len:
            raise admission.too_long(len(ids), pairs.fields[1])
    return [Prompt(ids=tuple(ids), second=second) for ids, second in encoded]


async def _encode_items(exchange: Exchange, served: Served, body: PairsRequest, pairs: Pairs) -> list[Prompt]:
    """A prompt for each item: texts as ``/v1/embeddings`` reads them in ``input``, content as a user's message."""
    texts = iter(await exchange.prepare(sum(map(len, pairs.texts)), _encode_texts, served, body, pairs))
    prompts = []
    for item, place in pairs.items():
        if isinstance(item, str):
            prompts.append(next(texts))
        else:
            prompts.append(await _encode_content(exchange, served, body, item, place))
            check_media_size(prompts, place)
    return prompts


async def _encode_content(exchange: Exchange, served: Served, body: PairsRequest, item: Content, place: str) -> Prompt:
    shown = InputRequest(
        messages=[Message(role="user", content=item.content)],
        cache_salt=body.cache_salt,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        mm_processor_kwargs=body.mm_processor_kwargs,
    )
    with naming_fields({"messages[0]": place, "messages": place, _CUT: _CUT}):
        return await encode_chat(shown, served, exchange)


def _encode_texts(served: Served, body: PooledRequest, pairs: Pairs) -> list[Prompt]:
    admission, tokenizer = served.admission, served.client.tokenizer
    prompts = []
    for items, field in zip((pairs.firsts, pairs.seconds), pairs.fields, strict=True):
        for text in items:
            if not isinstance(text, str):
                continue
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
