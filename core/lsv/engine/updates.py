"""What an owner asks of the engine, and what it tells the owner of that."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from lsv.config import EngineConfig
from lsv.engine.messages import Start, Submit, Update
from lsv.errors import BadRequest, LsvError, RequestFailed
from lsv.request.group import RequestGroup
from lsv.request.media import MEDIA_REFUSED
from lsv.request.params import NO_TOKEN_LEFT, PROCESSOR_REFUSES
from lsv.request.request import FinishReason, Request
from lsv.scheduler.outcome import Outcome

Owner = TypeVar("Owner", bound=Hashable)


class OpenRequest(Generic[Owner]):
    """A request that has not ended: its owner, the owner's number for it, and how many of its sequences are left."""

    __slots__ = ("id", "owner", "sequences")

    def __init__(self, owner: Owner, id: int, sequences: int) -> None:
        self.owner = owner
        self.id = id
        self.sequences = sequences


class Outgoing(Generic[Owner]):
    """Updates that owners have not got yet."""

    def __init__(self) -> None:
        self._updates: dict[Owner, list[Update]] = {}

    def __bool__(self) -> bool:
        return bool(self._updates)

    def add(self, asked: OpenRequest[Owner], update: Update) -> None:
        """News of a request for its owner."""
        self._updates.setdefault(asked.owner, []).append(update)

    def take(self) -> dict[Owner, list[Update]]:
        """All updates by owner; none are left."""
        updates, self._updates = self._updates, {}
        return updates

    def clear(self) -> None:
        self._updates.clear()


def make_group(number: int, message: Submit, config: EngineConfig, arrival: float) -> RequestGroup:
    """What was asked, numbered from ``number`` on; ``arrival`` is a time of the engine's clock in seconds."""
    return RequestGroup(
        number,
        message.spec,
        stop_ids=message.stop_ids,
        bad_words=message.bad_words + (config.encoded.forbidden if config.encoded else ()),
        seed=config.seed,
        arrival=arrival,
    )


def make_update(id: int, outcome: Outcome, error: LsvError | None = None) -> Update:
    """What an outcome is to its owner; ``error`` is what it failed with, where that is known.

    At most 15 arguments by name: with more, CPython builds a dictionary for each call, which takes four times as long.
    """
    if outcome.error is not None and error is None:
        error = _as_error(outcome.error)
    request = outcome.request
    is_first = outcome.vector is not None or (outcome.tokens and len(request.output) == len(outcome.tokens))
    return Update(
        id=id,
        index=request.index,
        tokens=outcome.tokens,
        logprobs=outcome.logprobs,
        prompt_logprobs=outcome.prompt_logprobs,
        vector=outcome.vector,
        start=_start_of(request) if is_first else None,
        drafted=request.drafted,
        computed=request.repeated if is_first and not request.spec.searched else 0,
        preemptions=0 if outcome.finish is None else request.preemptions,
        finish=outcome.finish,
        stop=outcome.stop,
        complete=outcome.complete,
        error=None if error is None else error.record(),
    )


def _start_of(request: Request) -> Start:
    planned, first = request.first_planned, request.first_token
    return Start(
        cached=request.cached,
        queued=0.0 if planned is None else planned - request.arrival,
        prefill=0.0 if planned is None or first is None else first - planned,
    )


def _as_error(why: str) -> LsvError:
    """Map a row's failure to an error. Impossible constraints and unfit arguments or media are the client's fault."""
    of_client = why.startswith((NO_TOKEN_LEFT, PROCESSOR_REFUSES, MEDIA_REFUSED))
    return BadRequest(why) if of_client else RequestFailed(why)


def make_count(id: int, computed: int) -> Update:
    """News of a request whose answers have not grown: ``computed`` tokens were computed for it."""
    return Update(id=id, computed=computed)


def make_refusal(id: int, error: LsvError) -> Update:
    """The answer to a request that was not admitted."""
    return Update(id=id, finish=FinishReason.ERROR, error=error.record())
