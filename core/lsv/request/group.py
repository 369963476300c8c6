"""What was asked together: it is submitted once, waits in one place, and its sequences are made as they come up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lsv.request.adapter import Adapter
from lsv.request.request import Need, Request
from lsv.request.spec import RequestSpec


class RequestGroup:
    """All sequences of a request, as the scheduler gets them.

    They are numbered from ``id`` on. ``stop_ids`` and ``bad_words`` are those of each sequence, ``seed`` is the
    engine's: what sequences without a seed of their own draw theirs from. ``arrival`` and ``deadline`` are times of the
    engine's clock in seconds.
    """

    rounds = False
    """Whether more sequences may follow when these have ended: the group keeps its place until it is closed."""

    def __init__(
        self,
        id: int,
        spec: RequestSpec,
        *,
        stop_ids: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
        seed: int = 0,
        arrival: float = 0.0,
        needs: Iterable[Need] = (),
        adapter: Adapter | None = None,
    ) -> None:
        self.id = id
        self.spec = spec
        self.size = spec.size
        self.arrival = arrival
        self.deadline = None if spec.timeout is None else arrival + spec.timeout
        self.needs: set[Need] = set(needs)
        self.adapter = adapter
        self.stop_ids = stop_ids
        self._bad_words = bad_words
        self._seed = seed

    def make(self, index: int) -> Request:
        """Sequence ``index``; to be asked for once."""
        return Request(
            self.id + index,
            self.spec,
            index=index,
            stop_ids=self.stop_ids,
            bad_words=self._bad_words,
            seed=self._seed_of(index),
            arrival=self.arrival,
            adapter=self.adapter,
        )

    def _seed_of(self, index: int) -> int:
        """Each sequence draws its own numbers, the same ones in every run that sends the same requests."""
        params = self.spec.sampling
        if params is None or params.seed is None:
            return derive_seed(self._seed, self.id + index + 1)
        return derive_seed(params.seed, index % self.spec.candidates)


def derive_seed(seed: int, number: int) -> int:
    """The seed of sequence ``number``: the given one for the first, unrelated 64-bit ones for all others."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "little")
