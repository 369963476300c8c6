"""What clients and engine say to each other: msgspec records in length-prefixed frames on a private socket.

A connection opens with ``Hello``; the engine answers ``Welcome``, then ``Progress`` while it loads and one
``Ready`` (or ``Failed``, which ends its open requests). From then on one ``Tokens`` message a step carries all updates
of that connection.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lsv.config import EngineConfig, Fit, OptionValue
from lsv.errors import ErrorRecord
from lsv.processes.wire import Failed as Failed
from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.plan import Logprobs

PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True, tag=True):
    protocol: int = PROTOCOL


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One sequence to compute; ``id`` is the connection's own. Exactly one of the two params is given.

    ``stop_ids`` are all ids that end the answer (eos unless ignored, and the user's); ``bad_words`` are token
    sequences; ``salt`` separates tenants in the prefix cache; lower ``priority`` goes first; ``timeout`` in seconds.
    """

    id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams | None = None
    pooling: PoolingParams | None = None
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    media: tuple[Media, ...] = ()
    positions: Positions | None = None
    seed: int | None = None
    priority: int = 0
    salt: bytes = b""
    timeout: float | None = None
    name: str = ""
    trace: Mapping[str, str] = {}


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The client does not want these any more; nothing is answered."""

    ids: tuple[int, ...]


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The client found a stop string: the answer ends after ``keep`` tokens, as finished, not as aborted."""

    id: int
    keep: int
    reason: FinishReason = FinishReason.STOP


class Control(msgspec.Struct, frozen=True, tag=True):
    """An order for the engine (``reset_prefix_cache``, ``drain``, ``stop``), answered by ``Controlled``."""

    id: int
    order: str
    arguments: Mapping[str, OptionValue] = {}


ClientMessage = Hello | Submit | Abort | Finish | Control


class Welcome(msgspec.Struct, frozen=True, tag=True):
    protocol: int
    version: str
    fingerprint: str
    config: EngineConfig


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the start has come: ``done`` of ``total`` in ``stage``."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    fit: Fit


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request: new tokens, and at the end how it ended.

    ``stop`` is the token id that ended the answer (it is in ``tokens``), None for eos. ``cached`` counts prompt tokens
    taken from the prefix cache (sent with the first update). ``queued`` is the time in seconds until the request
    was first planned, ``prefill`` from there to its first token.
    """

    id: int
    tokens: tuple[int, ...] = ()
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    vector: bytes | None = None
    cached: int | None = None
    queued: float | None = None
    prefill: float | None = None
    finish: FinishReason | None = None
    stop: int | None = None
    error: ErrorRecord | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's state after a step. Names ending in ``_total`` only grow."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_queries_total: int = 0
    prefix_hits_total: int = 0
    nonfinite_total: int = 0
    unwarmed_total: int = 0
    steps_total: int = 0
    step_seconds_total: float = 0.0
    model_seconds_total: float = 0.0


class Tokens(msgspec.Struct, frozen=True, tag=True):
    updates: tuple[Update, ...]
    stats: Stats


class Controlled(msgspec.Struct, frozen=True, tag=True):
    id: int
    error: ErrorRecord | None = None


class Boot(msgspec.Struct, frozen=True, tag=True):
    """The first thing an engine process is told, over the private channel to its parent."""

    config: EngineConfig
    log_level: str = "INFO"


EngineMessage = Welcome | Progress | Ready | Failed | Tokens | Controlled
