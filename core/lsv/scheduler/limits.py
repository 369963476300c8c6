"""The bounds within which a scheduler works, all known before the first request."""

from __future__ import annotations

import msgspec

from lsv.capabilities import Padding


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes are in tokens unless they say otherwise."""

    max_num_seqs: int
    """Requests that run at a time."""
    max_num_batched_tokens: int
    """Tokens of a step."""
    max_model_len: int
    """Prompt and output of a request together."""
    max_queue: int = 4096
    """Requests of one tenant that wait at a time."""
    depth: int = 1
    """Plans in flight at a time."""
    chunked_prefill: bool = True
    """Without it, a prompt is computed in one step."""
    mixed_batches: bool = True
    """Without it, a step holds prompt tokens or decoding rows, never both."""
    max_preemptions: int = 3
    """A request that was preempted so often comes back only when it can reserve all blocks it can ever need."""
    max_itl: float | None = None
    """Seconds that a step with decoding rows should stay under; None is no limit."""
    padding: Padding | None = None
    """What steps of prompts are padded to, if they are: they then count by their padded shape."""
    encoder_tokens: int = 0
    """Embeddings of media that the worker keeps at a time."""
    encoder_parts: int = 1
    """Pieces into which encoding an item is cut."""

    @property
    def tokens_in_flight(self) -> int:
        """The most tokens of one request that can be planned and not settled."""
        return self.depth * self.max_num_batched_tokens
