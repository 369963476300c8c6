"""The messages between clients and engine: msgspec records in length-prefixed frames on a private socket.

A connection opens with ``Hello``; the engine answers ``Welcome``, then ``Progress`` while it loads and one
``Ready`` (or ``Failed``, which ends its open requests). From then on one ``Tokens`` message a step carries all updates
of that connection. About once a second there is a ``Beat``, to clients and to the parent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.request.adapter import Adapter
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.scheduler.outcome import AdapterRequests, OffloadCounts, SpeculationCounts
from lsv.scheduler.plan import Logprobs
from lsv_base.errors import ErrorRecord
from lsv_base.processes.wire import Failed as Failed

PROTOCOL = 7


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Opens a connection."""

    protocol: int = PROTOCOL
    """The version of these messages that the client speaks."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A request: all its sequences, submitted together."""

    id: int
    """Names the request on this connection; its sequences are numbered as in ``RequestSpec``."""

    spec: RequestSpec
    """What is asked, after admission."""

    stop_ids: tuple[int, ...] = ()
    """All token ids that end the answer: eos unless it is ignored, and the user's."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not come."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The client no longer wants what has not ended of these requests; nothing is answered."""

    ids: tuple[int, ...]
    """The requests, by the ids they were submitted under."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The client has found the end of an answer, a stop string: it is finished, not aborted."""

    id: int
    """The request, by the id it was submitted under."""

    index: int
    """The sequence in it."""

    keep: int
    """How many tokens belong to the answer."""

    reason: FinishReason = FinishReason.STOP
    """How the answer counts as ended."""


class Control(msgspec.Struct, frozen=True, tag=True):
    """An order for the engine, answered by ``Controlled``."""

    id: int
    """Names the order on this connection."""

    order: str
    """The name of its type, a subclass of ``lsv.engine.orders.order.Order``. The engine's table says which it knows."""

    body: bytes
    """The record as msgpack, see ``lsv_base.processes.orders.encode_order``."""


ClientMessage = Hello | Submit | Abort | Finish | Control


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``Hello``."""

    protocol: int
    """The version of these messages that the engine speaks."""

    version: str
    """The engine's version of lsv."""

    fingerprint: str
    """That of ``config``."""

    config: EngineConfig
    """What the engine runs, as it was resolved."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the engine's start has come."""

    stage: str
    """What is being done: ``weights``, ``warm-up`` …"""

    done: int
    """Parts of the stage that are done."""

    total: int
    """Parts of the stage."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    fit: Fit
    """What fits into the device's memory."""


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sequence got to its first tokens, or to its vector."""

    cached: int = 0
    """Prompt tokens taken from the prefix cache."""

    queued: float = 0.0
    """Seconds until the request was first planned."""

    prefill: float = 0.0
    """Seconds from there to its first token."""


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new about one sequence: new tokens, and at the end how it ended."""

    id: int
    """The request, by the id it was submitted under."""

    index: int = 0
    """The sequence in it."""

    tokens: tuple[int, ...] = ()
    """New token ids."""

    logprobs: Logprobs | None = None
    """Those of ``tokens``, where they were asked for."""

    prompt_logprobs: Logprobs | None = None
    """More of the prompt's, which come as it is computed."""

    vector: bytes | None = None
    """The vector of a pooling request: float32, little-endian."""

    start: Start | None = None
    """Sent once: with the first tokens, or with the vector."""

    drafted: tuple[int, int] | None = None
    """Drafts that were verified so far, and those that were accepted; None where there were none."""

    computed: int = 0
    """Tokens computed for the request beside ``tokens``: again for a further candidate, or in a round of a beam search.
    Tokens of a search's answers are counted in its rounds alone.
    """

    preemptions: int = 0
    """How often it was preempted; told at its end."""

    finish: FinishReason | None = None
    """How the sequence ended; None while it grows."""

    stop: int | None = None
    """The token id that ended the answer (it is in ``tokens``); None for eos."""

    complete: bool = False
    """Whether a grammar ended the answer: no token had to, so its last one belongs to it."""

    error: ErrorRecord | None = None
    """Why the sequence failed."""


class ExpertCounts(msgspec.Struct, frozen=True):
    """How evenly ranks that share experts are loaded: a rank's mean load as a share of the fullest rank's, 0 … 1, over
    all layers with experts. 0 while nothing has been measured.
    """

    measured: float = 0.0
    """When it was measured last."""
    expected: float = 0.0
    """What it would have been with the experts as they were moved then."""
    moved_total: int = 0
    """Experts that have changed ranks since the start, each time in one layer."""
    balanced_total: int = 0
    """How often experts have been moved, or found to be well where they are."""


STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""What steps are counted by: how many tokens they compute."""


class Stats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's state after a step. Names ending in ``_total`` only grow."""

    running: int = 0
    """Sequences that hold KV blocks."""

    waiting: int = 0
    """Sequences that are queued."""

    deferred: int = 0
    """Requests among these that wait for what another one computes, or for something else they need."""

    kv_usage: float = 0.0
    """Share of the KV cache's blocks in use, 0 to 1."""

    preemptions_total: int = 0
    """How often a running sequence lost its blocks to another one."""

    rejections_total: int = 0
    """Requests that were refused because the queue was full."""

    prompt_tokens_total: int = 0
    """Prompt tokens computed."""

    generation_tokens_total: int = 0
    """Tokens generated."""

    prefix_queries_total: int = 0
    """Prompt tokens looked up in the prefix cache."""

    prefix_hits_total: int = 0
    """Prompt tokens found there."""

    nonfinite_total: int = 0
    """Rows whose logits were not finite."""

    unwarmed_total: int = 0
    """Steps in a shape that had not been warmed up."""

    steps_total: int = 0
    """Steps run."""

    tokens_total: int = 0
    """Tokens computed in all steps, those that were computed again among them."""

    speculation: SpeculationCounts | None = None
    """What became of drafts; None where there are none."""

    adapters: AdapterRequests | None = None
    """The adapters that requests go through; None where adapters are not served."""

    offload: OffloadCounts | None = None
    """What is behind the device's KV cache; None where nothing is."""

    experts: ExpertCounts | None = None
    """Where experts move between ranks; None where they stay."""

    step_tokens: tuple[int, ...] = ()
    """How many steps computed at most as many tokens as each of ``STEP_TOKENS``, and more than the one before; then
    the rest.
    """

    failed_steps_total: int = 0
    """Steps that failed, with all requests in them."""

    step_seconds_total: float = 0.0
    """Seconds spent in steps."""

    model_seconds_total: float = 0.0
    """Seconds of these spent in the model."""

    parts: Mapping[str, float] = {}
    """What the engine's parts have counted, see ``lsv.engine.parts.part.Part.counters``; totals."""


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """What a step brought for one connection."""

    updates: tuple[Update, ...]
    """One for each sequence with anything new."""

    stats: Stats
    """The engine's state after the step."""


class Controlled(msgspec.Struct, frozen=True, tag=True):
    """An order has been carried out, or refused."""

    id: int
    """The order, by the id of its ``Control``."""

    error: ErrorRecord | None = None
    """Why it was refused."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life from the thread that runs the engine."""

    within: float
    """Seconds until the next message of any kind, or the engine hangs."""

    stage: str = ""
    """What is being loaded; empty once requests are taken."""


class Boot(msgspec.Struct, frozen=True, tag=True):
    """The first message to an engine process, over the private channel to its parent."""

    config: EngineConfig
    """What to run."""

    log_level: str = "INFO"
    """The least severe level that is logged."""


class Adapters(msgspec.Struct, frozen=True, tag=True):
    """The adapters that are served; sent once the engine is ready, and when they change."""

    listed: tuple[Adapter, ...]


class Asleep(msgspec.Struct, frozen=True, tag=True):
    """The parts of its memory that the engine has given back; sent when they change, and no requests are taken while
    there are any.
    """

    parts: tuple[str, ...]


EngineMessage = Welcome | Progress | Ready | Failed | Tokens | Controlled | Adapters | Asleep | Beat
