"""The engine's side of grammars: which requests wait for one, where their answers stand, what they may go on with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from lsv.errors import BadRequest, LsvError, from_record
from lsv.grammars import masks
from lsv.grammars.compiler import Asked, GrammarCompiler
from lsv.grammars.grammar import Grammar, Matcher
from lsv.grammars.thinking import ThinkingMatcher
from lsv.request.request import FinishReason, Request
from lsv.scheduler.plan import AwaitMasks, Masks

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

    def fill(self, rows: Iterable[tuple[int, Request]]) -> AwaitMasks:
        """Fill the masks of rows in a thread; the answer waits for them."""
        jobs = [_Job(row, self._matcher(request), _ignored(request, self._compiler.eos)) for row, request in rows]
        return self._thread.submit(_fill, jobs, self._compiler.vocab_size).result

    def accept(self, request: Request, tokens: Sequence[int]) -> FinishReason | None:
        """Go on by tokens of an answer. Says how it ends here, if so: nothing may follow, or there is a ``fault``."""
        matcher = self._matcher(request)
        if not matcher.accept(tokens):
            return FinishReason.ERROR
        return FinishReason.STOP if matcher.finished else None

    def is_free(self, request: Request) -> bool:
        """Whether an answer need not be followed any more: it has thought, and has no form."""
        matcher = self._matchers.get(request.id)
        return isinstance(matcher, ThinkingMatcher) and matcher.free

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
        return answer if thinking is None else ThinkingMatcher(answer, self._compiler.vocabulary, thinking)


class _Job(NamedTuple):
    """A row whose mask is to be filled."""

    row: int
    matcher: Matcher
    ignored: tuple[int, ...]
    """Ends of answers that are not to come as long as anything else may."""


def _ignored(request: Request, eos: tuple[int, ...]) -> tuple[int, ...]:
    return eos if request.sampling is not None and request.sampling.ignore_eos else ()


def _fill(jobs: Sequence[_Job], vocab_size: int) -> Masks:
    words = np.zeros((len(jobs), masks.words_of(vocab_size)), np.uint32)
    for mask, job in zip(words, jobs, strict=True):
        try:
            job.matcher.fill(mask.data)
        except Exception:  # its row fails, and no other
            log.exception("a grammar could not say what may follow")
            mask[:] = 0
        _forbid_unless_last(mask, job.ignored)
    return Masks(tuple(job.row for job in jobs), words.tobytes())


def _forbid_unless_last(mask: masks.Mask, tokens: Iterable[int]) -> None:
    """Forbid these tokens if any others may follow."""
    left = mask.copy()
    masks.forbid(left, tokens)
    if left.any():
        mask[:] = left
