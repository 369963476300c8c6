"""A request as the scheduler sees it: what was asked, how far it has come, and how it can end."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal

from lsv.request.media import Media, cross_item
from lsv.request.spec import RequestSpec


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(enum.StrEnum):
    """Where a request is in its life. A preempted request is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


Need = Literal["grammar", "media", "adapter", "kv"]
"""What a request can need before it may be admitted. Seam for grammars and adapters; nothing sets any yet."""


class Request:
    """One sequence under way: what was asked, and what has become of it so far.

    ``prompt`` and the growing ``output`` are token ids; ``stop_ids`` are all ids that end the answer, ``bad_words`` are
    token sequences. ``arrival``, ``deadline``, ``first_planned`` and ``first_token`` are times of the engine's clock in
    seconds. ``computed`` counts the tokens whose KV stands, ``cached`` the prompt tokens found in the prefix cache. The
    scheduler owns all that changes.
    """

    __slots__ = (
        "arrival", "bad_words", "cached", "computed", "deadline", "first_planned", "first_token", "id", "media",
        "needs", "output", "pooling", "positions", "preemptions", "priority", "prompt", "salt", "sampling", "seed",
        "spec", "status", "stop_ids",
    )  # fmt: skip

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
    ) -> None:
        assert (spec.sampling is None) != (spec.pooling is None), "a request samples or pools"
        self.id = id
        self.spec = spec
        # what steps read is an attribute of the request itself
        self.prompt = spec.prompt.ids
        self.media = spec.prompt.media
        self.positions = spec.prompt.positions
        self.sampling = spec.sampling
        self.pooling = spec.pooling
        self.priority = spec.priority
        self.salt = spec.salt
        self.stop_ids = stop_ids
        self.bad_words = bad_words
        self.seed = seed
        self.arrival = arrival
        self.deadline = None if spec.timeout is None else arrival + spec.timeout
        self.needs: set[Need] = set(needs)
        self.output: list[int] = []
        self.status = Status.WAITING
        self.computed = 0
        self.cached = 0
        self.preemptions = 0
        self.first_planned: float | None = None
        self.first_token: float | None = None

    def __len__(self) -> int:
        """Prompt and output tokens together."""
        return len(self.prompt) + len(self.output)

    @property
    def cross_item(self) -> Media | None:
        """The item that all tokens attend to in an encoder-decoder model."""
        return cross_item(self.media)

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        """The token ids at positions ``start … stop-1`` of prompt and output as one sequence."""
        size = len(self.prompt)
        if stop <= size:
            return self.prompt[start:stop]
        return self.prompt[start:] + tuple(self.output[max(start - size, 0) : stop - size])
