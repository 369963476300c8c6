"""The engine's side of grammars: requests that wait for one, the state of answers, and masks of the next tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np

from lsv.config import Fit
from lsv.engine.parts.part import Host, Part, PartContext
from lsv.grammars import masks
from lsv.grammars.compiler import Asked, GrammarCompiler
from lsv.grammars.followed import Followed
from lsv.grammars.grammar import Grammar, Matcher, rewindable
from lsv.grammars.lane import SlowLane
from lsv.grammars.thinking import ThinkingMatcher
from lsv.grammars.thinking_ahead import RewindableThinkingMatcher
from lsv.request.group import RequestGroup
from lsv.request.request import FinishReason, Request
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import AwaitMasks, Masks
from lsv.scheduler.plan_builder import GuidedRow
from lsv_base.errors import BadRequest, LsvError, from_record

log = logging.getLogger(__name__)

ALLOWANCE = 0.01
"""Seconds for which a step may wait for the matchers of all its answers together."""


class _Held(NamedTuple):
    """A sequence that waits for the slow lane."""

    request: Request
    going: Future[bool]


def make_guide(context: PartContext) -> Guide:
    """The part of an engine that keeps answers to their grammars."""
    return Guide(GrammarCompiler(context.catalog, context.config), context.engine)


class Guide(Part):
    """The grammars of request groups, from ``open`` to ``close``, and the matchers of their sequences, by id."""

    name = "grammar"

    def __init__(self, compiler: GrammarCompiler, engine: Host) -> None:
        self._compiler, self._engine = compiler, engine
        self._grammars: dict[int, Grammar] = {}
        self._waiting: dict[int, tuple[Asked, bytes]] = {}
        self._firsts: dict[int, masks.Mask | None] = {}
        """By group, the mask of the first token."""
        self._followed: dict[int, Followed] = {}
        self._held: dict[int, _Held] = {}
        self._lane = SlowLane()
        self._left = ALLOWANCE
        """What is left of ``ALLOWANCE`` in this step."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, fit: Fit) -> None:
        self._compiler.vocab_size = fit.vocab_size

    def open(self, group: RequestGroup) -> bool:
        """A group whose answers must have a form waits for its grammar. Raises the error if the grammar is invalid."""
        params = group.spec.sampling
        if params is None or not group.spec.guided:
            return False
        asked, salt = params.structured_outputs, group.spec.salt
        found = self._compiler.find(asked, salt)
        if isinstance(found, LsvError):
            raise from_record(found.record())  # a copy: raising the cached error would add tracebacks to it
        if found is None:
            self._waiting[group.id] = asked, salt
            return True
        self._keep(group.id, asked, salt, found)
        return False

    @property
    def busy(self) -> bool:
        """Whether request groups wait for their grammars, or sequences for the slow lane."""
        return bool(self._waiting or self._held)

    def wait(self, seconds: float) -> None:
        """Wait for a grammar to be compiled, or for the slow lane."""
        if self._waiting:
            self._compiler.wait(seconds)
        elif self._held:
            wait([held.going for held in self._held.values()], seconds, return_when="FIRST_COMPLETED")

    def ready(self) -> Iterator[tuple[int, LsvError | None]]:
        """The groups whose grammar is compiled, or could not be."""
        for group, (asked, salt) in tuple(self._waiting.items()):
            found = self._compiler.find(asked, salt)
            if found is None:
                continue
            del self._waiting[group]
            if isinstance(found, LsvError):
                yield group, found
            else:
                self._keep(group, asked, salt, found)
                yield group, None

    def mask(self, rows: Iterable[GuidedRow]) -> AwaitMasks:
        """Compute the masks of rows in a thread."""
        self._left = ALLOWANCE
        jobs = [_Job(row, self._follow(request), drafts) for row, request, drafts in rows]
        return self._thread.submit(_fill, jobs, self._compiler.vocab_size).result

    def follows(self, group: RequestGroup) -> bool:
        return group.spec.guided and not group.spec.searched

    def follow(self, outcome: Outcome) -> tuple[Outcome]:
        """Follow the new tokens of a sequence; returns the outcome, which may now end the answer.

        Ends the sequence in the scheduler if nothing may follow or there is a fault. Releases it if the rest of the
        answer is free. Otherwise cuts its drafts to those that the grammar allows.

        An answer whose last token took long is followed in the slow lane. Its sequence is held until ``resume``.
        """
        request, scheduler = outcome.request, self._engine.scheduler
        if not outcome.tokens or outcome.finish is FinishReason.STOP:
            return (outcome,)
        followed = self._follow(request)
        if outcome.finish is None and (followed.slow or followed.cost > self._left):
            scheduler.hold(request.id)
            scheduler.cut_drafts(request.id, lambda drafts: (0, False))
            going = self._lane.follow(followed, outcome.tokens, masks.words_of(self._compiler.vocab_size))
            self._held[request.id] = _Held(request, going)
            return (outcome,)
        self._left -= followed.cost
        if ends := _find_end(followed, followed.accept(outcome.tokens)):
            scheduler.finish(request.id, len(request.output), ends)
            return (self._complete(outcome, ends),)
        matcher = followed.matcher
        if isinstance(matcher, ThinkingMatcher) and matcher.free:
            scheduler.release(request.id)
        else:
            scheduler.cut_drafts(request.id, partial(_look_ahead, matcher, self._compiler.eos))
        return (outcome,)

    def resume(self) -> Iterator[Outcome]:
        """Resume sequences that the slow lane has followed, and yield the outcomes of those that have ended."""
        scheduler = self._engine.scheduler
        for id, (request, going) in tuple(self._held.items()):
            if not going.done() or id not in self._held:  # it may have ended together with another sequence
                continue
            del self._held[id]
            scheduler.resume(id)
            if ends := _find_end(self._followed[id], going.result()):
                outcome = scheduler.finish(id, len(request.output), ends)
                if outcome is not None:
                    yield self._complete(outcome, ends)

    def _complete(self, outcome: Outcome, ends: FinishReason) -> Outcome:
        """The outcome of an answer that its grammar has ended."""
        fault = self.explain(outcome.request)
        return msgspec.structs.replace(
            outcome, finish=ends, complete=True, error=None if fault is None else fault.message
        )

    def explain(self, request: Request) -> LsvError | None:
        """Why an answer can't go on; None while it can."""
        followed = self._followed.get(request.id)
        if followed is None or followed.fault is None:
            return None
        return BadRequest(f"structured_outputs: {followed.fault}", param="structured_outputs")

    def drop(self, request: Request) -> None:
        """Forget a sequence."""
        self._followed.pop(request.id, None)
        held = self._held.pop(request.id, None)
        if held is not None:
            held.going.cancel()

    def close(self, group: int) -> None:
        """Forget a request group."""
        for kept in (self._grammars, self._firsts, self._waiting):
            kept.pop(group, None)

    def stop(self) -> None:
        self._lane.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()

    def _keep(self, group: int, asked: Asked, salt: bytes, grammar: Grammar) -> None:
        self._grammars[group] = grammar
        self._firsts[group] = self._compiler.first(asked, salt)

    def _follow(self, request: Request) -> Followed:
        found = self._followed.get(request.id)
        if found is None:
            ignored = _ignored(request, self._compiler.eos)
            found = self._followed[request.id] = Followed(self._begin(request), ignored)
            first = self._firsts[request.group]
            if first is not None and request.spec.thinking is None:
                found.mask = first.copy()
                found.forbid_ignored(found.mask)
        return found

    def _begin(self, request: Request) -> Matcher:
        answer, thinking = self._grammars[request.group].begin(), request.spec.thinking
        if thinking is None:
            return answer
        form, vocabulary = rewindable(answer), self._compiler.vocabulary
        if form is None:
            return ThinkingMatcher(answer, vocabulary, thinking)
        return RewindableThinkingMatcher(form, vocabulary, thinking)


class _Job(NamedTuple):
    """A row whose masks are to be computed: after its last known token, and after each draft."""

    row: int
    followed: Followed
    drafts: tuple[int, ...]

    @property
    def positions(self) -> int:
        return 1 + len(self.drafts)


def _ignored(request: Request, eos: tuple[int, ...]) -> tuple[int, ...]:
    return eos if request.sampling is not None and request.sampling.ignore_eos else ()


def _find_end(followed: Followed, going: bool) -> FinishReason | None:
    """How the grammar ends the answer that has just been followed; None if it goes on."""
    if not going:
        return FinishReason.ERROR
    return FinishReason.STOP if followed.finished else None


def _look_ahead(matcher: Matcher, eos: Sequence[int], drafts: Sequence[int]) -> tuple[int, bool] | None:
    """How many of ``drafts`` may come next without ending the answer, and whether the next draft is forbidden.

    None if the matcher can't be rewound. A draft that ends the answer needs no verification, because the token is
    sampled in its place anyway and nothing follows it.
    """
    ahead = rewindable(matcher)
    if ahead is None:
        return None
    ids = [*takewhile(lambda token: token not in eos, drafts)]
    taken = ahead.advance(ids)
    ends = taken > 0 and ahead.finished
    ahead.rollback(taken)
    return taken - ends, taken < len(ids) and not ends


def _fill(jobs: Sequence[_Job], vocab_size: int) -> Masks:
    words = np.zeros((sum(job.positions for job in jobs), masks.words_of(vocab_size)), np.uint32)
    first = 0
    for job in jobs:
        mine = words[first : first + job.positions]
        first += job.positions
        try:
            _fill_row(job, mine)
        except Exception:  # only this row fails
            log.exception("computing the mask of a grammar failed")
            mine[:] = 0
    return Masks(tuple(job.row for job in jobs for _ in range(job.positions)), words.tobytes())


def _fill_row(job: _Job, words: masks.Mask) -> None:
    """Fill ``words`` [positions, words of a mask], given as zeros. A mask that stays zero ends the row before it."""
    followed = job.followed
    if followed.mask is not None:
        words[0] = followed.mask
    else:
        followed.fill(words[0])
    matcher = rewindable(followed.matcher)
    if not job.drafts or matcher is None or followed.fault is not None:
        return
    taken = 0
    for draft, mask in zip(job.drafts, words[1:], strict=True):
        if not matcher.advance((draft,)):
            break
        taken += 1
        followed.fill(mask)
    matcher.rollback(taken)
