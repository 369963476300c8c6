"""A request as the scheduler sees it: what was asked, how far it has come, and how it can end."""

from __future__ import annotations

import enum

from lsv.request.adapter import Adapter
from lsv.request.media import Media, cross_item, keep_apart
from lsv.request.params import SamplingParams
from lsv.request.spec import RequestSpec


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"
    """It only repeated itself, as ``repetition_detection`` describes that."""


class Status(enum.StrEnum):
    """Where a request is in its life. A preempted request is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


Need = str
"""The name of what a request waits for before it may be admitted: a part of the engine, or its grammar."""


class Request:
    """One sequence under way: what was asked, and what has become of it so far.

    It is number ``index`` of the request group ``group``. ``prompt`` and the growing ``output`` are token ids;
    ``stop_ids`` are all ids that end the answer, ``bad_words`` are token sequences. ``arrival``, ``first_planned`` and
    ``first_token`` are times of the engine's clock in seconds. ``cached`` counts the prompt tokens found in the prefix
    cache; ``drafted`` are the drafts that were verified for it and those accepted, None where there were none.
    ``repeated`` counts the tokens of whole blocks that were computed again for it because the cache did not keep what
    another sequence of its request had computed. The scheduler owns all that changes.
    """

    __slots__ = (
        "adapter", "arrival", "bad_words", "cached", "drafted", "first_planned", "first_token", "group", "id", "index",
        "media", "output", "pooling", "positions", "preemptions", "prompt", "repeated", "salt", "sampling", "second",
        "seed", "spec", "status", "stop_ids",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        spec: RequestSpec,
        *,
        index: int = 0,
        stop_ids: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
        seed: int = 0,
        arrival: float = 0.0,
        adapter: Adapter | None = None,
    ) -> None:
        assert (spec.sampling is None) != (spec.pooling is None), "a request samples or pools"
        self.id = id
        self.group = id - index
        self.index = index
        self.spec = spec
        # what steps read is an attribute of the request itself
        prompt = spec.prompt_of(index)
        self.prompt = prompt.ids
        self.media = keep_apart(prompt.media, spec.salt)
        self.positions = prompt.positions
        self.second = prompt.second
        self.sampling = _own_params(spec, index)
        self.pooling = spec.pooling
        self.salt = spec.salt
        self.adapter = adapter
        self.stop_ids = stop_ids
        self.bad_words = bad_words
        self.seed = seed
        self.arrival = arrival
        self.output: list[int] = []
        self.status = Status.WAITING
        self.cached = 0
        self.drafted: tuple[int, int] | None = None
        self.preemptions = 0
        self.repeated = 0
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


def _own_params(spec: RequestSpec, index: int) -> SamplingParams | None:
    """The parameters of a sequence: a prompt is scored once, for its first candidate."""
    params = spec.sampling
    if params is None or params.prompt_logprobs is None or index % spec.candidates == 0:
        return params
    return params.replace(prompt_logprobs=None)
