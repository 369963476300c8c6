"""The bounds a scheduler stays inside, all known before the first request."""

from __future__ import annotations

import msgspec

from lsv.capabilities import Padding


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``max_num_seqs`` requests run at a time and a step holds at most ``max_num_batched_tokens`` tokens.

    ``max_model_len`` bounds prompt and output together; ``max_queue`` the requests that wait; ``depth`` the plans in
    flight. Without ``chunked_prefill`` a prompt is computed in one step; without ``mixed_batches`` a step holds prompt
    tokens or decoding rows, never both. A request that was preempted ``max_preemptions`` times
    comes back only when all blocks it can ever need are free, and keeps them. ``max_itl`` is the time in seconds that
    a step with decoding rows should stay under; None is no limit. ``padding`` says what steps of prompts are padded to:
    they then count as much as their padded form. The worker keeps embeddings of media for ``encoder_tokens`` tokens,
    and computes them in ``encoder_parts`` pieces.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_queue: int = 4096
    depth: int = 1
    chunked_prefill: bool = True
    mixed_batches: bool = True
    max_preemptions: int = 3
    max_itl: float | None = None
    padding: Padding | None = None
    encoder_tokens: int = 0
    encoder_parts: int = 1

    @property
    def tokens_in_flight(self) -> int:
        """Most tokens of one request that are planned and not settled."""
        return self.depth * self.max_num_batched_tokens
