"""The engine's side of grammars: which requests wait for one, where their answers stand, what they may go on with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from lsv.errors import BadRequest, LsvError, from_record
from lsv.grammars import masks
from lsv.grammars.compiler import Asked, GrammarCompiler
from lsv.grammars.grammar import Grammar, Matcher, rewindable
from lsv.grammars.thinking import ThinkingMatcher
from lsv.grammars.thinking_ahead import RewindableThinkingMatcher
from lsv.request.request import FinishReason, Request
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import AwaitMasks, Masks
from lsv.scheduler.plan_builder import GuidedRow

if TYPE_CHECKING:
    from lsv.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


class Guide:
    """Knows request groups by their ids, from ``open`` to ``close``, and their sequences by those of requests."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._grammars: dict[int, Grammar] = {}
        self._waiting: dict[int, Asked] = {}
        self._matchers: dict[int, Matcher] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, vocab_size: int) -> None:
        """The model is loaded."""
        self._compiler.vocab_size = vocab_size

    def open(self, group: int, asked: Asked) -> bool:
        """A request group needs a grammar; whether there is one already. Raises what refuses it."""
        found = self._compiler.find(asked)
        if isinstance(found, LsvError):
            raise from_record(found.record())  # it is kept, and one that is raised grows by its traceback
        if found is None:
            self._waiting[group] = asked
            return False
        self._grammars[group] = found
        return True

    @property
    def compiling(self) -> bool:
        """Whether request groups wait for their grammars."""
        return bool(self._waiting)

    def take_compiled(self, wait: float = 0.0) -> Iterator[tuple[int, LsvError | None]]:
        """The groups that need not wait any more, and why they can't be served if so.

        With nothing else to do, up to ``wait`` seconds are waited for one.
        """
        if not self._waiting:
            return
        if wait:
            self._compiler.wait(wait)
        for group, asked in tuple(self._waiting.items()):
            found = self._compiler.find(asked)
            if found is None:
                continue
            del self._waiting[group]
            if isinstance(found, LsvError):
                yield group, found
            else:
                self._grammars[group] = found
                yield group, None

    def fill(self, rows: Iterable[GuidedRow]) -> AwaitMasks:
        """Fill the masks of rows in a thread; the answer waits for them."""
        jobs = [
            _Job(row, self._matcher(request), _ignored(request, self._compiler.eos), drafts)
            for row, request, drafts in rows
        ]
        return self._thread.submit(_fill, jobs, self._compiler.vocab_size).result

    def follow(self, outcome: Outcome, scheduler: Scheduler) -> Outcome:
        """News of a request that has a grammar, as they are once that has seen the new tokens.

        ``scheduler`` is told where they end the answer, since nothing may follow or there is a ``fault``; where the
        answer need not be followed any more, since it has thought and has no form; else which drafts may come next.
        """
        request = outcome.request
        if not outcome.tokens or outcome.finish is FinishReason.STOP:
            return outcome
        matcher = self._matcher(request)
        going = matcher.accept(outcome.tokens)
        if not going or matcher.finished:
            ends = FinishReason.STOP if going else FinishReason.ERROR
            scheduler.finish(request.id, len(request.output), ends)
            fault = self.fault(request)
            return msgspec.structs.replace(
                outcome, finish=ends, complete=True, error=None if fault is None else fault.message
            )
        if isinstance(matcher, ThinkingMatcher) and matcher.free:
            scheduler.release(request.id)
        else:
            scheduler.cut_drafts(request.id, partial(_look_ahead, matcher, self._compiler.eos))
        return outcome

    def fault(self, request: Request) -> LsvError | None:
        """Why an answer can't go on, if so."""
        matcher = self._matchers.get(request.id)
        if matcher is None or matcher.fault is None:
            return None
        return BadRequest(f"structured_outputs: {matcher.fault}", param="structured_outputs")

    def drop(self, request: Request) -> None:
        """A sequence has ended."""
        self._matchers.pop(request.id, None)

    def close(self, group: int) -> None:
        """A request group has ended."""
        self._grammars.pop(group, None)
        self._waiting.pop(group, None)

    def clear(self) -> None:
        """All requests have ended."""
        for kept in (self._grammars, self._waiting, self._matchers):
            kept.clear()

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()

    def _matcher(self, request: Request) -> Matcher:
        found = self._matchers.get(request.id)
        if found is None:
            found = self._matchers[request.id] = self._begin(request)
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
    """A row whose masks are to be filled: of what follows its last known token, and of what follows each draft."""

    row: int
    matcher: Matcher
    ignored: tuple[int, ...]
    """Ends of answers that are not to come as long as anything else may."""
    drafts: tuple[int, ...]

    @property
    def positions(self) -> int:
        return 1 + len(self.drafts)


def _ignored(request: Request, eos: tuple[int, ...]) -> tuple[int, ...]:
    return eos if request.sampling is not None and request.sampling.ignore_eos else ()


def _look_ahead(matcher: Matcher, eos: Sequence[int], drafts: Sequence[int]) -> tuple[int, bool] | None:
    """How many of ``drafts`` may come next without ending the answer, and whether the one behind them may not; None
    where the matcher can't go ahead of the answer.

    One that ends it needs no verification: it is sampled in its place anyway, and nothing comes behind it.
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
        except Exception:  # its row fails, and no other
            log.exception("a grammar could not say what may follow")
            mine[:] = 0
    return Masks(tuple(job.row for job in jobs for _ in range(job.positions)), words.tobytes())


def _fill_row(job: _Job, words: masks.Mask) -> None:
    """``words`` [positions, words of a mask], all zero: what stays so behind a draft ends the row before it."""
    _fill_position(job, words[0])
    matcher = rewindable(job.matcher)
    if not job.drafts or matcher is None or matcher.fault is not None:
        return
    taken = 0
    for draft, mask in zip(job.drafts, words[1:], strict=True):
        if not matcher.advance((draft,)):
            break
        taken += 1
        _fill_position(job, mask)
    matcher.rollback(taken)


def _fill_position(job: _Job, mask: masks.Mask) -> None:
    job.matcher.fill(mask.data)
    _forbid_unless_last(mask, job.ignored)


def _forbid_unless_last(mask: masks.Mask, tokens: Iterable[int]) -> None:
    """Forbid these tokens if any others may follow."""
    left = mask.copy()
    masks.forbid(left, tokens)
    if left.any():
        mask[:] = left
