"""The requests of an engine that have not ended: whose they are, which parts follow them, and what owners hear."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from lsv.config import EngineConfig
from lsv.engine.messages import Start, Submit, Update
from lsv.engine.parts import Parts
from lsv.engine.parts.part import Part
from lsv.request.group import RequestGroup
from lsv.request.media import MEDIA_REFUSED
from lsv.request.params import NO_TOKEN_LEFT, PROCESSOR_REFUSES
from lsv.request.request import FinishReason, Request
from lsv.scheduler.outcome import Outcome
from lsv_base.errors import BadRequest, LsvError, RequestFailed

log = logging.getLogger(__name__)

Owner = TypeVar("Owner", bound=Hashable)


class OpenRequest(Generic[Owner]):
    """A request that has not ended."""

    __slots__ = ("followers", "id", "owner", "sequences")

    def __init__(self, owner: Owner, id: int, sequences: int, followers: tuple[Part, ...]) -> None:
        self.owner = owner
        self.id = id
        """The owner's number for it."""
        self.sequences = sequences
        """How many of its sequences are left."""
        self.followers = followers
        """The parts that follow its sequences."""


class OpenRequests(Generic[Owner]):
    """Requests by the ids of their groups, and what their owners have not heard yet."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._open: dict[int, OpenRequest[Owner]] = {}
        self._groups: dict[tuple[Owner, int], int] = {}
        self._updates: dict[Owner, list[Update]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._open)

    @property
    def have_news(self) -> bool:
        """Whether ``take_updates`` returns anything."""
        return bool(self._updates)

    def take_updates(self) -> dict[Owner, list[Update]]:
        """All updates by owner; none are left."""
        updates, self._updates = self._updates, {}
        return updates

    def open(self, owner: Owner, id: int, group: RequestGroup) -> None:
        """A request has been queued as ``group``. Its owner has no other one of this number."""
        assert (owner, id) not in self._groups, f"request {id} is known"
        self._open[group.id] = OpenRequest(owner, id, group.size, self._parts.followers(group))
        self._groups[owner, id] = group.id

    def find(self, owner: Owner, id: int) -> int | None:
        """The group of an owner's request; None if the request has ended."""
        return self._groups.get((owner, id))

    def ids_of(self, owner: Owner) -> list[int]:
        """An owner's numbers for its requests."""
        return [id for known, id in self._groups if known == owner]

    def take(self, outcome: Outcome, error: LsvError | None = None) -> None:
        """Pass news of a sequence on, through the parts that follow it. ``error`` is as in ``publish``.

        Ignores a request that has failed in this very step.
        """
        asked = self._open.get(outcome.request.group)
        if asked is None:
            return
        if not asked.followers:
            self._publish(asked, outcome, error)
            return
        outcomes: Sequence[Outcome] = (outcome,)
        for part in asked.followers:
            outcomes = [after for before in outcomes for after in part.follow(before)]
        for after in outcomes:
            self._publish(asked, after, error)

    def publish(self, outcome: Outcome, error: LsvError | None = None) -> None:
        """Turn an outcome into an update for its owner; ``error`` is what it failed with, where that is known."""
        self._publish(self._open[outcome.request.group], outcome, error)

    def _publish(self, asked: OpenRequest[Owner], outcome: Outcome, error: LsvError | None) -> None:
        request = outcome.request
        if outcome.error is not None:
            for part in asked.followers:
                error = error or part.explain(request)
            log.warning("req=%s failed: %s", request.spec.request_id, outcome.error)
        if outcome.finish is not None:
            self.end(request)
            log.debug("req=%s finished (%s): %d tokens", request.spec.request_id, outcome.finish, len(request.output))
        self._updates.setdefault(asked.owner, []).append(make_update(asked.id, outcome, error))

    def note_computed(self, group: int, tokens: int) -> None:
        """Tell the owner of a request that so many tokens were computed for it, though its answers have not grown."""
        asked = self._open[group]
        self._updates.setdefault(asked.owner, []).append(make_count(asked.id, tokens))

    def end(self, request: Request) -> None:
        """A sequence has ended."""
        asked = self._open[request.group]
        asked.sequences -= 1
        _drop(asked, request)
        if not asked.sequences:
            self._close(request.group)

    def abort(self, groups: Iterable[int], outcomes: Iterable[Outcome]) -> None:
        """Requests have ended with these outcomes, of which their owners hear nothing."""
        for outcome in outcomes:
            _drop(self._open[outcome.request.group], outcome.request)
            log.debug("req=%s aborted after %d tokens", outcome.request.spec.request_id, len(outcome.request.output))
        for group in groups:
            self._close(group)

    def fail(self, outcomes: Iterable[Outcome]) -> None:
        """The engine has failed: all requests have ended with these outcomes, and owners hear of the failure alone."""
        self.abort(self.groups, outcomes)
        self._updates.clear()

    def _close(self, group: int) -> None:
        asked = self._open.pop(group)
        del self._groups[asked.owner, asked.id]
        self._parts.close(group)


def _drop(asked: OpenRequest[Owner], request: Request) -> None:
    for part in asked.followers:
        part.drop(request)


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
