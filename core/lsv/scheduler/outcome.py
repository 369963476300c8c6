"""Reports of the scheduler: outcomes of requests, and its own state."""

from __future__ import annotations

import msgspec

from lsv.request.request import FinishReason, Request
from lsv.scheduler.plan import Logprobs


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a step has changed for one request."""

    request: Request
    tokens: tuple[int, ...] = ()
    """The new ids; the last one may have ended the answer."""
    logprobs: Logprobs | None = None
    """Of ``tokens``, if asked for."""
    prompt_logprobs: Logprobs | None = None
    """Of the prompt, if asked for, from where the previous ones ended."""
    vector: bytes | None = None
    """What a pooling request gives: float32, little endian."""
    finish: FinishReason | None = None
    """None while the request goes on."""
    stop: int | None = None
    """The id that ended the answer, if the user named it as a stop; None for eos."""
    complete: bool = False
    """Whether a grammar ended the answer: its last token belongs to it."""
    error: str | None = None
    """Why the request ended with ERROR."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a scheduler."""

    running: int
    """Requests that hold a slot."""
    waiting: int
    """Requests that don't hold a slot."""
    deferred: int
    """Of these, request groups that wait for something other than room."""
    kv_usage: float
    """Share of the cache's blocks in use, 0 … 1."""

    # Totals since the start

    preemptions: int
    prefix_queries: int
    """Prompt tokens that were looked up in the prefix cache, once per request."""
    prefix_hits: int
    """Prompt tokens that were found there."""
    prompt_tokens: int
    generation_tokens: int


class SpeculationCounts(msgspec.Struct, frozen=True):
    """Since the start: rows with drafts, their drafts, those accepted, these by their place, and the rows' tokens."""

    rows: int
    drafts: int
    accepted: int
    by_place: tuple[int, ...]
    emitted: int = 0


class OffloadCounts(msgspec.Struct, frozen=True):
    """The state of the KV cache's lower tiers."""

    queries: int
    """Prompt tokens looked up there since the start, because the device did not have them; once per request."""
    hits: int
    """How many of these were found."""
    usage: float
    """Share of host memory in use, 0 … 1."""
    transfers: int = 0
    """Requests since the start for which something was fetched from another engine, or was to be."""
    failed_transfers: int = 0
    """Of these, requests that had to compute some or all of their prompt instead."""
    transferred_bytes: int = 0


class AdapterRequests(msgspec.Struct, frozen=True):
    """The names of the adapters that requests go through, in order, each once."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    """Adapters of requests with no running sequence."""


class Totals:
    """What a scheduler has counted since its start, as in ``Counts``."""

    __slots__ = ("generation_tokens", "preempted", "preemptions", "prefix_hits", "prefix_queries", "prompt_tokens")

    def __init__(self) -> None:
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.preempted = ""
        """The request that was preempted last, as its client named it."""

    def count_prompt(self, tokens: int, cached: int, *, looked_up: bool) -> None:
        """Count a request admitted for the first time, with ``cached`` prompt tokens found if they were looked up."""
        self.prompt_tokens += tokens
        if looked_up:
            self.prefix_queries += tokens
            self.prefix_hits += cached
