"""What leaves the engine for a user: answers as they grow, and the record of a request that has ended."""

from __future__ import annotations

import msgspec

from lsv.request.request import FinishReason


class TokenLogprob(msgspec.Struct, frozen=True):
    """One candidate at one position: its id, text, log probability and rank (1 = most likely)."""

    id: int
    text: str
    logprob: float
    rank: int


PositionLogprobs = tuple[TokenLogprob, ...]
"""Candidates of one position: the chosen token first, then the most likely ones in order."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """News of one candidate answer (``index`` of n): the text and tokens that are new since the last chunk.

    The first chunk of candidate 0 carries ``prompt_logprobs`` (the first position has none) and ``cached``.
    The last chunk has a ``finish``; ``stop`` is then the stop string or token id that ended the answer, None for eos.
    """

    index: int = 0
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] | None = None
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    cached: int | None = None
    finish: FinishReason | None = None
    stop: int | str | None = None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a request went; times in seconds. ``tokens`` counts all candidates, ``itl`` lists the gaps between tokens.

    ``longest`` counts the tokens of the longest candidate; None where that is not known apart from ``tokens``.
    """

    request_id: str
    model: str
    prompt_tokens: int
    tokens: int
    cached_tokens: int
    finish: FinishReason
    n: int
    best_of: int
    max_tokens: int
    queued: float
    prefill: float
    ttft: float | None
    e2e: float
    itl: tuple[float, ...] = ()
    longest: int | None = None


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One finished or growing answer."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    cumulative_logprob: float | None = None
    logprobs: tuple[PositionLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """A prompt and its answers. ``prompt`` is None when only token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    num_cached_tokens: int = 0
    encoder_prompt: str | None = None


class EmbeddingOutput(msgspec.Struct, frozen=True):
    embedding: tuple[float, ...]


class EmbeddingRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput
    finished: bool = True
