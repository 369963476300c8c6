"""Bodies of requests and answers of the routes for vectors, labels and scores, as vLLM, Jina and Cohere name them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from lsv.media.content_parts import ContentPart
from lsv_api.records.requests import Messages, PromptField, ScheduledRequest
from lsv_api.records.responses import Usage


class PooledRequest(ScheduledRequest, kw_only=True):
    """What these requests share. ``use_activation`` false gives raw scores instead of probabilities."""

    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None


class InputRequest(PooledRequest, kw_only=True):
    """What requests share that read either ``input`` or ``messages``.

    ``input``: a text, texts, token ids, or lists of token ids. ``messages``: one conversation, which may have media;
    the other fields mean the same as in chat completions.
    """

    input: PromptField | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    @property
    def field(self) -> Literal["input", "messages"]:
        """The field that holds the prompts."""
        return "input" if self.messages is None else "messages"


class VectorRequest(InputRequest, kw_only=True):
    """What requests share whose answers may be vectors."""

    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    endianness: Literal["native", "little", "big"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class EmbeddingRequest(VectorRequest, kw_only=True):
    """POST /v1/embeddings. ``use_activation`` is vLLM's name of ``normalize``.

    ``prompt_name``: which of the model's own prompts goes before texts. ``enable_chunked_processing``: whether a text
    that is longer than the context is read in pieces.
    """

    prompt_name: str | None = None
    enable_chunked_processing: bool | None = None


class PoolingRequest(VectorRequest, kw_only=True):
    """POST /pooling. Without a ``task``: a vector for each token, or what else the model gives each token."""

    task: Literal["embed", "classify", "token_embed", "token_classify", "reward"] | None = None


class ClassifyRequest(InputRequest, kw_only=True):
    """POST /classify."""


class Content(msgspec.Struct, kw_only=True):
    """Texts and media where a text may stand: the parts of a user's message."""

    content: list[ContentPart | str]


Item = str | Content


class PairsRequest(PooledRequest, kw_only=True):
    """What requests share that compare texts and media. The other fields are for media, as in chat completions."""

    brings_media: ClassVar[bool] = True

    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class ScoreRequest(PairsRequest, kw_only=True):
    """POST /score. One ``text_1`` is paired with every ``text_2``, several with as many."""

    text_1: Item | list[Item]
    text_2: Item | list[Item]


class RerankRequest(PairsRequest, kw_only=True):
    """POST /rerank. ``top_n`` 0 gives all documents; ``return_documents`` false leaves their texts out."""

    query: Item
    documents: list[Item]
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
