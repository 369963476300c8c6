"""One of several engines: its client, and what this process has sent there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lsv.engine.replicas.prefixes import Chain, HeldBlocks
from lsv.engine.replicas.router import Load
from lsv.engine.socket_client import SocketClient
from lsv.request.spec import RequestSpec
from lsv_base.errors import LsvError, Unavailable

_MOST_BLOCKS = 1 << 18
"""Blocks that are remembered of a replica, however large its cache is."""
_REFUSAL_SECONDS = 1.0
"""After a refusal, how long others are asked instead."""


class Replica:
    """``number`` counts from 0."""

    def __init__(self, number: int, client: SocketClient) -> None:
        self.number, self.client = number, client
        self._refuses_until = 0.0
        self.is_current = False
        """Whether it has been told of the adapters of the others since its engine began."""
        self._held = HeldBlocks()
        self._owed = self._open = 0

    @property
    def is_ready(self) -> bool:
        return self.client.status.state == "ready" and time.monotonic() >= self._refuses_until

    def serves(self, adapter: str) -> bool:
        """Whether an adapter of that name is loaded here, and not one that the others have replaced."""
        return self.is_current and any(one.name == adapter for one in self.client.adapters)

    def load(self, chains: Sequence[Chain]) -> Load:
        """How busy it is, and what it holds of the prompts with these ``chains``.

        Its last report tells of the requests of all processes, but not yet of those that were sent since.
        """
        stats = self.client.stats
        return Load(self._tokens_held(chains), self._owed, max(self._open, stats.running + stats.waiting))

    @contextmanager
    def visit(self, request: RequestSpec, chains: Sequence[Chain]) -> Iterator[Visit]:
        """A request is under way here within the block."""
        missing = request.prompt_tokens - self._tokens_held(chains)
        visit = Visit(self, missing)
        self._held.add(chains, self._room())
        self._owed += missing
        self._open += request.width
        try:
            yield visit
        finally:
            visit.begin()
            self._open -= request.width

    def _tokens_held(self, chains: Sequence[Chain]) -> int:
        return sum(map(self._held.count, chains)) * self.client.config.block_size

    def _room(self) -> int:
        """Blocks that its cache holds of prompts."""
        fit = self.client.fit
        return 0 if fit is None else min(fit.kv_tokens // self.client.config.block_size, _MOST_BLOCKS)

    def settle(self, tokens: int) -> None:
        """So many tokens of prompts are no longer owed."""
        self._owed -= tokens

    def note_refusal(self, refusal: LsvError) -> None:
        """An engine that takes no requests although it is ready is about to end or to fall asleep: another process has
        told it to. If nothing comes of that, it is to be asked again.
        """
        if isinstance(refusal, Unavailable):
            self._refuses_until = time.monotonic() + _REFUSAL_SECONDS

    def forget(self) -> None:
        """Its cache is empty."""
        self._held.clear()

    def renew(self) -> None:
        """Its client talks to another engine than before, or to none."""
        self._refuses_until, self.is_current = 0.0, False
        self.forget()


class Visit:
    """A request at a replica; ``missing`` tokens of its prompts are to be computed."""

    def __init__(self, replica: Replica, missing: int) -> None:
        self._replica = replica
        self._missing = missing
        self.has_begun = False
        """Whether there is something of an answer."""

    def begin(self) -> None:
        """The prompts are computed, or never will be."""
        if not self.has_begun:
            self.has_begun = True
            self._replica.settle(self._missing)
