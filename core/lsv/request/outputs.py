"""What users get from an engine: answers as they grow, and the record of a request that has ended."""

from __future__ import annotations

from bisect import bisect_left
from typing import Self

import msgspec

from lsv.request.request import FinishReason
from lsv_base.errors import ErrorRecord, from_record


class TokenLogprob(msgspec.Struct, frozen=True):
    """One candidate for one position."""

    id: int
    """The token."""

    text: str
    """The token, spelt out."""

    logprob: float
    """Its log probability."""

    rank: int
    """Its place among all tokens; 1 is the likeliest."""


PositionLogprobs = tuple[TokenLogprob, ...]
"""Candidates of one position: the chosen token first, then as many of the likeliest, in order, as were asked for.

The chosen one is repeated if it is one of these. Equally likely ones have equal ranks, and stand in the order of their
ids.
"""


class Logprob(msgspec.Struct, frozen=True):
    """One candidate for one position, as offline users get it by its token."""

    logprob: float
    """Its log probability."""

    rank: int
    """Its place among all tokens; 1 is the likeliest."""

    decoded_token: str
    """The token, spelt out."""


TokenLogprobs = dict[int, Logprob]
"""Candidates of one position by token: the chosen one first, then the likeliest."""


def by_token(position: PositionLogprobs) -> TokenLogprobs:
    """A position as offline users get it."""
    return {entry.id: Logprob(entry.logprob, entry.rank, entry.text) for entry in position}


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in one answer since its last chunk."""

    prompt: int = 0
    """Which of the request's prompts it answers."""

    index: int = 0
    """Which of the prompt's candidates has grown."""

    text: str = ""
    """New text; empty while it is held back, because it might begin a stop string or end inside a character."""

    ids: tuple[int, ...] = ()
    """New token ids."""

    logprobs: tuple[PositionLogprobs, ...] | None = None
    """One entry for each of ``ids``, where they were asked for."""

    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """Those of the whole prompt, with the first chunk of candidate 0; its first token has none."""

    cached: int | None = None
    """Prompt tokens found in the prefix cache, with the first chunk of candidate 0."""

    drafted: tuple[int, int] | None = None
    """Drafts that were verified for the candidate so far, and those that were accepted."""

    computed: int = 0
    """Tokens that the engine computed for the request since the previous chunk, without prompts.

    These are ``ids``, rejected drafts, dropped beams, and prompts recomputed for a candidate.
    """

    finish: FinishReason | None = None
    """How the answer ended, in its last chunk."""

    stop: int | str | None = None
    """The stop string or token id that ended it; None for eos."""

    @property
    def grows(self) -> bool:
        """Whether the chunk has more than the number of computed tokens."""
        return bool(self.ids) or self.finish is not None


GAP_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""What times between tokens are counted by, in seconds."""


class Gaps(msgspec.Struct):
    """Times between two tokens of an answer, counted by their length, so that a long answer takes no more room."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(GAP_BOUNDS) + 1))
    """How many were at most as long as each of ``GAP_BOUNDS``, and longer than the one before; then the rest."""

    total: float = 0.0
    """Their sum in seconds."""

    def add(self, seconds: float, tokens: int = 1) -> None:
        """``tokens`` have come, together, ``seconds`` after the one before: each counts its share."""
        self.counts[bisect_left(GAP_BOUNDS, seconds / tokens)] += tokens
        self.total += seconds

    def without(self, other: Gaps) -> Gaps:
        """The difference to ``other``, an earlier count."""
        return Gaps([own - less for own, less in zip(self.counts, other.counts, strict=True)], self.total - other.total)

    def merge(self, other: Gaps) -> None:
        """Add all those that another one has counted."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Timings(msgspec.Struct, frozen=True):
    """Timings of an answer since the last call."""

    ttft: float | None = None
    """Time to first token, if the first token came since then."""

    itl: Gaps = msgspec.field(default_factory=Gaps)
    """Times between tokens since then."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a request went; times in seconds."""

    request_id: str
    """The request, as its client named it."""

    model: str
    """The model's first served name."""

    prompt_tokens: int
    """Tokens of the prompt."""

    tokens: int
    """Tokens of all candidates together."""

    cached_tokens: int
    """Prompt tokens found in the prefix cache."""

    finish: FinishReason
    """How the first candidate ended; ABORT or ERROR for the request as a whole."""

    n: int
    """Answers asked for."""

    best_of: int
    """Candidates computed."""

    max_tokens: int
    """Longest answer allowed."""

    queued: float
    """Time until the request was first planned."""

    prefill: float
    """Time from there to its first token."""

    ttft: float | None
    """Time to first token; None if there was none."""

    e2e: float
    """Time from arrival to end."""

    itl: Gaps = msgspec.field(default_factory=Gaps)
    """Times between tokens of an answer, of all candidates."""

    longest: int | None = None
    """Tokens of the longest candidate; None where only their sum is known."""

    preemptions: int = 0
    """How often its candidates lost their blocks to others."""

    fresh: Timings = msgspec.field(default_factory=Timings)
    """The part of ``ttft`` and ``itl`` that ``Client.take_timings`` has not returned yet."""


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One answer, finished or growing."""

    index: int
    """Its number among the request's answers."""

    text: str = ""
    """Its text so far."""

    token_ids: tuple[int, ...] = ()
    """Its tokens so far."""

    cumulative_logprob: float | None = None
    """Sum of the tokens' log probabilities, where they are known."""

    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, where they were asked for."""

    finish_reason: FinishReason | None = None
    """How it ended; None while it grows."""

    stop_reason: int | str | None = None
    """The stop string or token id that ended it; None for eos."""


class _Failable(msgspec.Struct, kw_only=True):
    """What a request came to, which may be that it failed."""

    error: ErrorRecord | None = None
    """Why the request failed; None where it did not."""

    def checked(self) -> Self:
        """This very output. Raises the error that the request failed with."""
        if self.error is not None:
            raise from_record(self.error)
        return self


class RequestOutput(_Failable, kw_only=True):
    """A prompt and its answers. Those of a request that failed are as far as they had come, with the reason "error"."""

    request_id: str
    """The request."""

    prompt: str | None
    """Its text as given; None when only token ids were given."""

    prompt_token_ids: tuple[int, ...]
    """The prompt as the model read it: truncated, if that was asked for, and with media in place."""

    outputs: list[CompletionOutput]
    """``n`` answers."""

    finished: bool
    """Whether all of them are complete."""

    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry a prompt token, where they were asked for; the first one has none."""

    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""

    encoder_prompt: str | None = None
    """What an encoder read as text; None where it read token ids, and without one."""

    encoder_prompt_token_ids: tuple[int, ...] | None = None
    """The tokens that an encoder read; None without one."""


class EmbeddingOutput(msgspec.Struct, frozen=True):
    """A vector."""

    embedding: list[float]
    """Its numbers."""


class EmbeddingRequestOutput(_Failable, kw_only=True):
    """A prompt and its vector, which is empty where the request failed."""

    request_id: str
    """The request."""

    prompt_token_ids: tuple[int, ...]
    """The prompt as the model read it."""

    outputs: EmbeddingOutput
    """The vector."""

    finished: bool = True
    """Always: a vector comes whole."""


class PoolingOutput(msgspec.Struct, frozen=True):
    """What the model made of a prompt."""

    data: list[float] | list[list[float]]
    """Its numbers, or those of each of its tokens."""


class PoolingRequestOutput(_Failable, kw_only=True):
    """A prompt and what the model made of it; empty where the request failed."""

    request_id: str
    """The request."""

    prompt_token_ids: tuple[int, ...]
    """The prompt as the model read it."""

    outputs: PoolingOutput
    """What the model made of it."""

    finished: bool = True
    """Always: it comes whole."""


class ClassificationOutput(msgspec.Struct, frozen=True):
    """Probabilities of labels."""

    probs: list[float]
    """By label, in the order of the model's."""

    @property
    def num_classes(self) -> int:
        return len(self.probs)


class ClassificationRequestOutput(PoolingRequestOutput, kw_only=True):
    """A prompt and the probabilities of its labels."""

    outputs: ClassificationOutput  # type: ignore[assignment]


class ScoringOutput(msgspec.Struct, frozen=True):
    """How well two texts go together."""

    score: float
    """The more, the better; NaN where the request failed."""


class ScoringRequestOutput(PoolingRequestOutput, kw_only=True):
    """A pair of texts and its score."""

    outputs: ScoringOutput  # type: ignore[assignment]
