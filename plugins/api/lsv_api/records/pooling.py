"""Bodies of requests and answers of the routes for vectors, labels and scores, as vLLM, Jina and Cohere name them."""

from __future__ import annotations

from typing import Literal

import msgspec

from lsv_api.records.requests import PromptField, ScheduledRequest
from lsv_api.records.responses import Usage

Texts = str | list[str]


class PooledRequest(ScheduledRequest, kw_only=True):
    """What these requests share. ``use_activation`` false gives raw scores instead of probabilities."""

    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None


class PoolingRequest(PooledRequest, kw_only=True):
    """POST /pooling. Without a ``task``: a vector for each token, or what else the model gives each token."""

    input: PromptField
    task: Literal["embed", "classify", "token_embed", "token_classify", "reward"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    endianness: Literal["native", "little", "big"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None


class ClassifyRequest(PooledRequest, kw_only=True):
    """POST /classify. ``input``: a text, texts, token ids, or lists of token ids."""

    input: PromptField
    add_special_tokens: bool | None = None


class ScoreRequest(PooledRequest, kw_only=True):
    """POST /score. One ``text_1`` is paired with every ``text_2``, several with as many."""

    text_1: Texts
    text_2: Texts


class RerankRequest(PooledRequest, kw_only=True):
    """POST /rerank. ``top_n`` 0 gives all documents; ``return_documents`` false leaves their texts out."""

    query: str
    documents: list[str]
    top_n: int = 0
    return_documents: bool = True


class Pooled(msgspec.Struct, kw_only=True):
    """``data``: numbers, a list of numbers a token, or base64."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float] | float] | str


class PoolingResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: Usage


class Classified(msgspec.Struct, kw_only=True):
    """``label`` is that of the largest of ``probs``."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classified]
    usage: Usage


class Scored(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Scored]
    usage: Usage


class Document(msgspec.Struct, kw_only=True):
    text: str


class Ranked(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``index`` is the document's place in the request."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(msgspec.Struct, kw_only=True):
    """``results``: the most relevant document first."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
