"""What the scheduler has to tell: news of a request, and the state of the whole."""

from __future__ import annotations

import msgspec

from lsv.request.request import FinishReason, Request
from lsv.scheduler.plan import Logprobs


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """News of one request. ``finish`` is None while it goes on.

    ``tokens`` are the new ids, the last of which may have ended the answer: ``stop`` is then that id if the user
    asked for it, None for eos. ``prompt_logprobs`` continue where the last ones ended. ``vector`` is float32, little
    endian. ``error`` says why a request ended with ERROR.
    """

    request: Request
    tokens: tuple[int, ...] = ()
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    vector: bytes | None = None
    finish: FinishReason | None = None
    stop: int | None = None
    error: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a scheduler. ``kv_usage`` is a share (0 … 1); from ``preemptions`` on numbers only grow.

    ``prefix_queries`` and ``prefix_hits`` count prompt tokens that were looked up and found, once per request.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int


class Totals:
    """What a scheduler has counted since its start, as in ``Counts``."""

    __slots__ = ("generation_tokens", "preemptions", "prefix_hits", "prefix_queries", "prompt_tokens")

    def __init__(self) -> None:
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.prompt_tokens = self.generation_tokens = 0

    def count_prompt(self, tokens: int, cached: int, *, looked_up: bool) -> None:
        """A request is admitted for the first time, with ``cached`` tokens of its prompt found if looked up."""
        self.prompt_tokens += tokens
        if looked_up:
            self.prefix_queries += tokens
            self.prefix_hits += cached
