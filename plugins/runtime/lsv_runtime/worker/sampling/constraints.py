"""What a request's parameters change about its logits, made once: a step adds what its tokens so far decide.

Lists of token ids are as long as users please. They become arrays of distinct ids of the vocabulary when the request
enters its slot, so that no step looks at them one by one. Ids outside the vocabulary can't be drawn anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin
from lsv_runtime.nn.sampling import EDIT, Edits, Kind
from lsv_runtime.worker.sampling.edits import NO_EDITS, join_edits, make_edits

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_FIRST_CAPACITY = 64


class Constraints:
    """The allowed ids, bad words, ``min_tokens``, bias and penalties of one request."""

    only: bool
    """Whether all tokens are forbidden but those that edits allow."""

    def __init__(self, begin: Begin, params: SamplingParams, ids: Int32s, vocabulary: int) -> None:
        """``ids`` are those of the prompt and of the output so far, all of them in the vocabulary."""
        allowed, self.only = _allow(params, vocabulary)
        singles = within((word[0] for word in begin.bad_words if len(word) == 1), vocabulary)
        self._always = join_edits((allowed, make_edits(Kind.FORBID, singles)))
        self._endings = _Endings(begin.bad_words, vocabulary)
        self._min_tokens = params.min_tokens
        self._stops = make_edits(Kind.FORBID, within(begin.stop_ids if params.min_tokens else (), vocabulary))
        self._bias = _bias(params, vocabulary)
        penalised = has_penalties(params)
        self._penalties = Penalties(params, ids[: begin.prompt], ids[begin.prompt :]) if penalised else None

    def edits(self, output: Int32s) -> list[Edits]:
        """Those for the token behind ``output``, in the order in which they apply."""
        parts = [self._always]
        if len(output) < self._min_tokens:
            parts.append(self._stops)
        if self._endings:
            parts.append(self._endings.after(output))
        parts.append(self._bias)
        if self._penalties is not None:
            parts.append(self._penalties.edits)
        return parts

    def edits_behind(self, output: Int32s, drafts: Sequence[int]) -> list[Edits]:
        """Those for the token behind ``output`` and ``drafts``, which may turn out to be wrong: nothing is kept, and
        what ``edits`` gave stays as it is.
        """
        if self._penalties is not None:
            self._penalties.make_room(len(drafts))
        for token in drafts:
            self.add(token)
        longer = np.concatenate((output, np.array(drafts, np.int32)))
        parts = [part.copy() for part in self.edits(longer)]
        for token in drafts:
            self._take_back(token)
        return parts

    def add(self, token: int) -> None:
        """The output has one more token."""
        if self._penalties is not None:
            self._penalties.add(token)

    def _take_back(self, token: int) -> None:
        if self._penalties is not None:
            self._penalties.take_back(token)


class Penalties:
    """Repetition and additive penalty of each distinct token of a request, as edits that follow its output."""

    def __init__(self, params: SamplingParams, prompt: Int32s, output: Int32s) -> None:
        self._params = params
        self._known: Int32s = np.unique(np.concatenate((prompt, output)))
        self._later: dict[int, int] = {}
        self._length = size = len(self._known)
        self._store: Edits = np.empty(max(_FIRST_CAPACITY, 2 * size), EDIT)
        self._counts: Int64s = np.zeros(len(self._store), np.int64)
        distinct, counts = np.unique(output, return_counts=True)
        self._counts[np.searchsorted(self._known, distinct)] = counts
        self._store[:size] = make_edits(
            Kind.PENALIZE, self._known, params.repetition_penalty, self._additive(self._counts[:size])
        )

    @property
    def edits(self) -> Edits:
        """One for each distinct token; the next ``add`` may make the array stale."""
        return self._store[: self._length]

    def make_room(self, count: int) -> None:
        """For so many more distinct tokens: until there are more, what is counted and taken back leaves no trace."""
        while self._length + count > len(self._store):
            self._store = np.concatenate((self._store, np.empty_like(self._store)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        place = self._place(token)
        self._counts[place] += 1
        additive = self._additive(self._counts[place : place + 1])
        self._store[place] = (token, Kind.PENALIZE, self._params.repetition_penalty, additive[0])

    def take_back(self, token: int) -> None:
        """Count one token of the output less; one that has not come yet changes nothing."""
        place = self._place(token)
        self._counts[place] -= 1
        known = place < len(self._known) or self._counts[place]
        additive = self._additive(self._counts[place : place + 1])
        repetition = self._params.repetition_penalty if known else 1.0
        self._store[place] = (token, Kind.PENALIZE, repetition, additive[0])

    def _place(self, token: int) -> int:
        place = int(np.searchsorted(self._known, token))
        if place < len(self._known) and self._known[place] == token:
            return place
        place = self._later.setdefault(token, self._length)
        if place == self._length:
            self.make_room(1)
            self._length += 1
        return place

    def _additive(self, counts: Int64s) -> npt.NDArray[np.float64]:
        params = self._params
        found: npt.NDArray[np.float64] = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
        return found


class _Endings:
    """The bad words of more than one token: each forbids its last one where the output ends with the others."""

    def __init__(self, words: Iterable[tuple[int, ...]], vocabulary: int) -> None:
        # By the last of the other tokens, so that a step looks at few of them.
        self._words: dict[int, list[tuple[Int64s, int]]] = {}
        for word in words:
            if len(word) > 1 and 0 <= word[-1] < vocabulary:
                self._words.setdefault(word[-2], []).append((np.array(word[:-1], np.int64), word[-1]))

    def __bool__(self) -> bool:
        return bool(self._words)

    def after(self, output: Int32s) -> Edits:
        if not len(output):
            return NO_EDITS
        words = self._words.get(int(output[-1]), ())
        last = [token for start, token in words if np.array_equal(output[-len(start) :], start)]
        return make_edits(Kind.FORBID, last) if last else NO_EDITS


def is_constrained(begin: Begin, params: SamplingParams) -> bool:
    """Whether a request changes its logits, apart from logits processors."""
    return bool(
        has_penalties(params)
        or params.allowed_token_ids is not None
        or begin.bad_words
        or params.min_tokens
        or params.logit_bias
    )


def has_penalties(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def within(tokens: Iterable[int], vocabulary: int) -> Int64s:
    """The distinct tokens that exist in a vocabulary of that size."""
    found = np.unique(np.fromiter(tokens, np.int64))
    inside: Int64s = found[(found >= 0) & (found < vocabulary)]
    return inside


def _allow(params: SamplingParams, vocabulary: int) -> tuple[Edits, bool]:
    """Edits that leave the allowed ids only, and whether that takes forbidding all that no edit allows.

    Where they are most of the vocabulary, the few others are forbidden instead.
    """
    if params.allowed_token_ids is None:
        return NO_EDITS, False
    allowed = within(params.allowed_token_ids, vocabulary)
    if 2 * len(allowed) <= vocabulary:
        return make_edits(Kind.ALLOW, allowed), True
    others = np.ones(vocabulary, np.bool_)
    others[allowed] = False
    return make_edits(Kind.FORBID, np.flatnonzero(others)), False


def _bias(params: SamplingParams, vocabulary: int) -> Edits:
    bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < vocabulary}
    return make_edits(Kind.ADD, list(bias), list(bias.values()))
