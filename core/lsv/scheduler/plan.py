"""The only messages between scheduler and worker: what a step shall do, and what it did.

Both are plain records, so the scheduler is tested with a fake worker and the worker with hand-written plans.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams


class Kind(enum.StrEnum):
    """What a step holds. IDLE is legal: ranks step together even when some have nothing to do."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"
    POOL = "pool"
    IDLE = "idle"


class Begin(msgspec.Struct, frozen=True):
    """A request enters a worker slot. Sent once per stay; the worker keeps the tokens from here on.

    ``ids`` holds the prompt and, after a preemption, the output so far; the first ``prompt`` of them are the
    prompt. ``seed`` is resolved (never None) and ``stop_ids`` are all ids that end the answer (``min_tokens`` masks
    them).
    """

    slot: int
    ids: tuple[int, ...]
    prompt: int
    params: SamplingParams | None = None
    pooling: PoolingParams | None = None
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    adapter: int | None = None
    media: tuple[Media, ...] = ()
    positions: Positions | None = None


class Rows(msgspec.Struct, frozen=True):
    """The step's work by columns, one entry a row: tokens ``start … start+count-1`` of ``slot`` are computed.

    ``drafts`` is the number of speculated tokens among them; ``wants_logits`` says that the last position samples
    (or, for a pooling request, yields its vector).
    """

    slot: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    count: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    wants_logits: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.slot)


class Grown(msgspec.Struct, frozen=True):
    """Block ids appended to a slot's block table in one KV group."""

    slot: int
    group: int
    blocks: tuple[int, ...]


class Encode(msgspec.Struct, frozen=True):
    """Parts ``first … last-1`` of the encoder's work on item ``place`` of a slot's media.

    What cross layers keep of an item is written to the slot's blocks after its last part; where that was done for
    another slot, ``first`` and ``last`` are both the number of parts.
    """

    slot: int
    place: int
    first: int
    last: int


class Move(msgspec.Struct, frozen=True):
    """A block copied between cache tiers."""

    source: int
    target: int
    tier: str


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. The worker handles ``end`` first, then ``begin``, then ``blocks``, then ``forget`` and ``encode``; then
    it computes ``rows``. ``forget`` are hashes of embeddings that are not needed any more.
    """

    step: int
    kind: Kind
    begin: tuple[Begin, ...] = ()
    end: tuple[int, ...] = ()
    rows: Rows = Rows()
    blocks: tuple[Grown, ...] = ()
    moves: tuple[Move, ...] = ()
    forget: tuple[bytes, ...] = ()
    encode: tuple[Encode, ...] = ()
    masked: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.rows.count)


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities of some positions: per position the ids, their log probabilities and the ids' ranks (1 = best).

    The chosen (or, for a prompt, the actual) token stands first, the most likely ones follow in order.
    """

    ids: tuple[tuple[int, ...], ...]
    values: tuple[tuple[float, ...], ...]
    ranks: tuple[tuple[int, ...], ...]


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step did, row by row in the plan's order.

    ``tokens[r]`` are the ids accepted for row r (empty when it did not sample); ``kept[r]`` the number of
    positions of the row whose KV stands (``computed = start + kept``). The mappings are keyed by row.
    ``prompt_logprobs[r]`` covers the positions ``start+1 … start+count`` that lie inside the prompt.
    ``vectors[r]`` is float32, little endian. ``failed[r]`` says why a row failed; only that request ends.
    ``nonfinite`` of those failed because their logits were not finite. ``unwarmed`` says that the step had a form that
    the platform had not prepared, though it prepares steps of this kind.
    """

    step: int
    seconds: float
    tokens: tuple[tuple[int, ...], ...] = ()
    kept: tuple[int, ...] = ()
    logprobs: Mapping[int, Logprobs] = {}
    prompt_logprobs: Mapping[int, Logprobs] = {}
    vectors: Mapping[int, bytes] = {}
    failed: Mapping[int, str] = {}
    nonfinite: int = 0
    unwarmed: bool = False
