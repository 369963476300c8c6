"""The only messages between scheduler and worker: what a step is to do, and what it did.

Both are plain records, so the scheduler is tested with a fake worker and the worker with hand-written plans.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

import msgspec

from lsv.kv.tiers.records import Load, Save
from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams


class Kind(enum.StrEnum):
    """What a step holds."""

    MIXED = "mixed"
    """Rows of prompts and decoding rows."""
    PREFILL = "prefill"
    """Rows of prompts only, or of drafts: some have several tokens."""
    DECODE = "decode"
    """Decoding rows only, of one token each."""
    ENCODE = "encode"
    """No rows: the step only encodes media."""
    IDLE = "idle"
    """Nothing is computed: blocks are copied, a request enters its slot that waits for room for its media, or replicas
    that share experts compute something."""


class Begin(msgspec.Struct, frozen=True):
    """A request enters a worker slot. Sent once per stay; the worker keeps the tokens from then on."""

    slot: int
    ids: tuple[int, ...]
    """The prompt and, after a preemption, the output so far."""
    prompt: int
    """How many of ``ids`` are the prompt."""
    params: SamplingParams | None = None
    """None for a pooling request."""
    pooling: PoolingParams | None = None
    """None for a request that samples."""
    seed: int = 0
    """Of the request's random draws; resolved, whether or not the user gave one."""
    stop_ids: tuple[int, ...] = ()
    """All ids that end the answer; ``min_tokens`` masks them."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that must not be sampled."""
    adapter: int | None = None
    """The slot of its adapter in the worker; None for the model as it is."""
    media: tuple[Media, ...] = ()
    """In the order of their places in the prompt."""
    positions: Positions | None = None
    """Where the prompt's tokens are along several rotary axes; None if that is their index."""
    second: int = 0
    """Where the second of two texts begins; 0 for a single text."""
    salt: bytes = b""
    """The tenant's salt. State that outlives the request is for requests with the same salt only."""


class Rows(msgspec.Struct, frozen=True, omit_defaults=True):
    """The step's work by columns, one entry per row: tokens ``start … start+count-1`` of ``slot`` are computed."""

    slot: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    count: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    """How many of the row's last tokens are drafts, the first of those that the worker told last; empty: none has any.
    """
    wants_logits: tuple[bool, ...] = ()
    """Whether the last position samples (or, for a pooling request, yields its vector), and with drafts the positions
    before them, too."""
    propose: tuple[int, ...] = ()
    """How many tokens, at most, are to be drafted behind what the row samples; empty is none for any."""

    def __len__(self) -> int:
        return len(self.slot)


class Grown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Blocks appended to a slot's block tables in one KV group, or in several that grow together."""

    slot: int
    group: int
    """The first of the groups."""
    blocks: tuple[int, ...]
    """The groups take turns: all of them get a block for the same tokens, then for the next ones."""
    groups: int = 1
    """How many groups there are, one after another."""


class KeptState(msgspec.Struct, frozen=True):
    """In block tables of state groups, blocks take the place of others: of the states that a row with drafts has left,
    these are the ones that stand.
    """

    slot: int
    group: int
    """The first of the groups."""
    column: int
    """Which of the slot's blocks it is in each group."""
    blocks: tuple[int, ...]
    """One for each group."""


class Encode(msgspec.Struct, frozen=True):
    """Some of the parts into which the encoder's work on a media item is cut.

    The item's cross-attention KV, if the model has any, is written to the slot's blocks after the last part. Where the
    item was encoded for another slot, ``first`` and ``last`` are both the number of parts, and it is only written.
    """

    slot: int
    place: int
    """The item's index in ``Begin.media`` of the slot."""
    first: int
    """The first part to compute."""
    last: int
    """One more than the last part to compute."""


class Enter(msgspec.Struct, frozen=True):
    """An adapter enters one of the worker's adapter slots, replacing the previous one."""

    slot: int
    adapter: int
    """``Adapter.id``."""


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step.

    The worker handles ``revoke``, ``saves``, ``loads``, ``adapters`` and ``end`` first, then ``begin``, ``blocks``,
    ``kept_states``, ``forget`` and ``encode``, and then computes ``rows``.
    """

    step: int
    """Counts up from 0; results come in the same order."""
    kind: Kind
    begin: tuple[Begin, ...] = ()
    """Requests that enter slots."""
    end: tuple[int, ...] = ()
    """Slots that are free again."""
    rows: Rows = Rows()
    """Which tokens are computed."""
    blocks: tuple[Grown, ...] = ()
    """Block tables that have grown."""
    kept_states: tuple[KeptState, ...] = ()
    """Where the states are that rows with drafts have left."""
    draft_states: tuple[Grown, ...] = ()
    """Blocks of state groups for this step alone, in no table: for the states before each draft of a row, as the last
    draft's goes where that of a row's last token always goes. One at a border goes to the table's block, if there is
    one."""
    saves: tuple[Save, ...] = ()
    """Contents of the KV cache that are copied to lower tiers."""
    loads: tuple[Load, ...] = ()
    """Contents that are copied back; they may be among ``saves``."""
    revoke: tuple[bytes, ...] = ()
    """Names of wrong contents, which stores outside of host memory remove."""
    forget: tuple[bytes, ...] = ()
    """Hashes of media whose embeddings are not needed any more."""
    encode: tuple[Encode, ...] = ()
    """Media to encode."""
    adapters: tuple[Enter, ...] = ()
    """Adapters that enter slots."""
    masked: bool = False
    """Whether grammars say what some rows may sample: ``Masks`` follow, and sampling waits for them."""

    @property
    def tokens(self) -> int:
        """How many tokens are computed."""
        return sum(self.rows.count)


class Masks(msgspec.Struct, frozen=True):
    """What the rows of a step may sample whose requests have a grammar."""

    rows: tuple[int, ...]
    """The rows of the plan that are masked, in order, each as often as it samples: once, and once behind each draft."""
    words: bytes
    """For each of them a bit a token, 1 for those that may come: uint32 [rows, words], the lowest bits first."""


AwaitMasks = Callable[[], Masks]
"""Waits for the masks of a step, which are filled while the step is computed."""


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities at some positions.

    At each position the chosen (or, for a prompt, the actual) token comes first, then the most likely ones in order.
    """

    ids: tuple[tuple[int, ...], ...]
    values: tuple[tuple[float, ...], ...]
    """The log probabilities of ``ids``."""
    ranks: tuple[tuple[int, ...], ...]
    """The ranks of ``ids`` in the whole vocabulary; 1 is the most likely token."""


def join_logprobs(parts: Iterable[Logprobs | None]) -> Logprobs | None:
    """Several runs of positions as one; None where there are none."""
    runs = [part for part in parts if part is not None]
    if not runs:
        return None
    return Logprobs(
        ids=tuple(row for run in runs for row in run.ids),
        values=tuple(row for run in runs for row in run.values),
        ranks=tuple(row for run in runs for row in run.ranks),
    )


def cut_logprobs(logprobs: Logprobs, span: slice) -> Logprobs:
    """The log probabilities of some of the positions."""
    return Logprobs(logprobs.ids[span], logprobs.values[span], logprobs.ranks[span])


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step did, row by row in the plan's order. The mappings are keyed by row."""

    step: int
    seconds: float
    """How long the step took in the worker."""
    tokens: tuple[tuple[int, ...], ...] = ()
    """The ids sampled for each row, of which all but the last were drafted; empty when it did not sample."""
    drafts: tuple[tuple[int, ...], ...] = ()
    """The ids drafted behind these, where the plan asked for any; empty is none for any row."""
    drafting: float = 0.0
    """How many of the ``seconds`` it took to draft them."""
    kept: tuple[int, ...] = ()
    """How many positions of each row have valid KV: ``computed = start + kept``."""
    logprobs: Mapping[int, Logprobs] = {}
    """Of the sampled tokens, where the request asked for them."""
    prompt_logprobs: Mapping[int, Logprobs] = {}
    """Of those of the positions ``start+1 … start+count`` that are inside the prompt."""
    vectors: Mapping[int, bytes] = {}
    """What pooling gave: float32, little endian."""
    failed: Mapping[int, str] = {}
    """Why a row failed; only its request ends."""
    broken: bool = False
    """Whether the step as a whole failed, and with it all rows; the worker goes on."""
    unencoded: Mapping[bytes, str] = {}
    """By hash, why media could not be encoded. Requests for which that was planned have failed; the hashes are to be
    forgotten, so that others have the items encoded anew.
    """
    lost: tuple[int, ...] = ()
    """Which of the plan's ``loads`` failed; what their requests' rows computed means nothing."""
    distrusted: tuple[int, ...] = ()
    """Rows of ``failed`` whose logits or states were not finite, and in a ``broken`` step all rows: what they have read
    from the KV cache, or written to it, may be wrong.
    """
    unwarmed: bool = False
    """Whether the step had a shape that the platform had not prepared, though it prepares steps of this kind."""
