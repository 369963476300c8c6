"""The bounds within which a scheduler works, all known before the first request."""

from __future__ import annotations

import msgspec

from lsv.capabilities import Padding
from lsv.request.media import Mutual


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
    stages: int = 1
    """Through how many stages a step passes. With several, no row is planned before its last token is known, and plans
    share the decoding rows out, so that each stage has one to compute."""
    chunked_prefill: bool = True
    """Without it, a prompt is computed in one step."""
    mixed_batches: bool = True
    """Without it, a step holds prompt tokens or decoding rows, never both."""
    max_preemptions: int = 3
    """After this many preemptions, readmit a request only with all blocks it could need reserved."""
    max_itl: float | None = None
    """Seconds that a step with decoding rows should stay under; None is no limit."""
    padding: Padding | None = None
    """What steps of prompts are padded to, if they are: they then count by their padded shape."""
    drafts: int = 0
    """The most tokens of a row that are drafted; 0 drafts none."""
    drafting_rows: int | None = None
    """With more running requests than this, nothing is drafted; None is no limit."""
    drafting_length: int | None = None
    """Nothing is drafted for sequences that would get longer; None is no limit."""
    adaptive_drafts: bool = True
    """Whether measurements say how many drafts of those there are verified; without, all are."""
    encoder_tokens: int = 0
    """Embeddings of media that the worker keeps at a time."""
    adapter_slots: int = 0
    """Adapters that requests of one step may go through."""
    encoder_parts: int = 1
    """Pieces into which encoding an item is cut."""
    mutual: Mutual = ""
    """Which tokens see one another. A step takes all that are left of such tokens."""

    @property
    def tokens_in_flight(self) -> int:
        """The most tokens of one request that can be planned and not settled."""
        return self.depth * self.max_num_batched_tokens
