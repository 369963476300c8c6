"""What the worker keeps for each running request: tokens, block tables, and what it changes about its logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.kv.spec import KVGroup
from lsv.request.media import cross_item
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin, Grown, Rows, StepPlan
from lsv_base.errors import LsvError
from lsv_runtime.attention.tables import BlockTables
from lsv_runtime.nn.pooling.states import Gathered
from lsv_runtime.nn.sampling import Edits
from lsv_runtime.worker.processing import Processing, Processors, end_processing
from lsv_runtime.worker.sampling.choices import make_choice
from lsv_runtime.worker.sampling.constraints import Constraints, is_constrained

Int32s = npt.NDArray[np.int32]

_FIRST_CAPACITY = 64


class GrowingInts:
    """An int32 array that is appended to in constant amortised time."""

    def __init__(self, values: Sequence[int] | Int32s = ()) -> None:
        self._length = len(values)
        self._store: Int32s = np.empty(max(_FIRST_CAPACITY, 2 * self._length), np.int32)
        self._store[: self._length] = values

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Int32s:
        """A view of the filled part; the next ``append`` may make it stale."""
        return self._store[: self._length]

    def at(self, place: int) -> int:
        assert 0 <= place < self._length, "this place has not been filled"
        return self._store.item(place)

    def append(self, value: int) -> None:
        if self._length == len(self._store):
            self._store = np.concatenate((self._store, np.empty_like(self._store)))
        self._store[self._length] = value
        self._length += 1


class Slot:
    """One request in the worker, from ``Begin`` to its end."""

    begin: Begin
    """The request as the scheduler sent it."""
    prompt: int
    """Tokens of the prompt; those after it are the output."""
    cross_len: int
    """Embeddings of the media item that its tokens attend to, 0 for none."""
    fault: str | None
    """Why the request can't be computed; None for one that can."""
    simple: bool
    """Whether its rows yield nothing but sampled tokens: no fault, no pooling, no prompt log probabilities."""
    tokens: GrowingInts
    """Ids of the prompt and of the output so far."""
    drafts: tuple[int, ...]
    """Ids that were proposed to follow its tokens, to be verified."""
    drafting: dict[str, Any]
    """What drafters remember of it."""
    constraints: Constraints | None
    """What its parameters change about its logits, if anything."""
    processing: tuple[Processing, ...]
    """What logits processors do for it."""
    constrained: bool
    """Whether its logits may change depending on the tokens so far."""
    choice: bytes
    """How its tokens are chosen, see ``lsv_runtime.worker.sampling.choices``; empty for a pooling request."""
    gathered: Gathered | None
    """What a pooling request has gathered of its tokens' states."""

    def __init__(self, begin: Begin, vocab_size: int) -> None:
        self.begin = begin
        self.prompt = begin.prompt
        item = cross_item(begin.media) if begin.media else None
        self.cross_len = 0 if item is None else item.count
        self._attends_from = None if item is None else item.start
        self.fault = _find_fault(begin, vocab_size)
        self.simple = self.fault is None and begin.params is not None and begin.params.prompt_logprobs is None
        self.tokens = GrowingInts(begin.ids if self.fault is None else (0,) * len(begin.ids))
        placed = begin.positions
        self._positions = None if placed is None else np.frombuffer(placed.data, np.int32).reshape(placed.axes, -1)
        params = begin.params
        constrained = self.fault is None and params is not None and is_constrained(begin, params)
        self.constraints = Constraints(begin, self.params, self.ids, vocab_size) if constrained else None
        self.processing = ()
        self.choice = b"" if params is None else make_choice(params, begin.seed)
        self.drafts, self.drafting = (), {}
        self.constrained = constrained or (params is not None and bool(params.logits_processors))
        self.gathered = None if begin.pooling is None else Gathered(begin.pooling.kind or "last")

    def fail(self, fault: str) -> None:
        """Mark the request as one that can't be computed any more, and say why."""
        self.fault, self.simple = fault, False

    def positions(self, start: int, stop: int, axes: int) -> Int32s:
        """Positions of tokens ``start … stop-1``, int32 [axes, tokens]: the request's own, or consecutive ones; of two
        axes as ``distances`` has the second.
        """
        if axes == 2:
            places = np.arange(start, stop, dtype=np.int32)
            return np.stack((places, distances(places, self._attends_from)))
        return np.broadcast_to(self._positions_alike(start, stop), (axes, stop - start))

    def _positions_alike(self, start: int, stop: int) -> Int32s:
        given = self._positions
        if given is None:
            return np.arange(start, stop, dtype=np.int32)[None]
        known = given[:, start:stop]
        assert self.begin.positions is not None
        rest = np.arange(max(start, self.prompt), stop, dtype=np.int32) + np.int32(self.begin.positions.offset)
        return np.concatenate((known, np.broadcast_to(rest, (len(given), len(rest)))), axis=1)

    @property
    def ids(self) -> Int32s:
        return self.tokens.values

    @property
    def output(self) -> Int32s:
        return self.tokens.values[self.prompt :]

    @property
    def params(self) -> SamplingParams:
        assert self.begin.params is not None, "a pooling request has no sampling parameters"
        return self.begin.params

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self.constraints is not None:
            self.constraints.add(token)

    def edits(self, drafts: int) -> list[Edits]:
        """What it changes about the logits behind its output and so many of its drafts, in the order of applying."""
        if self.constraints is None:
            return []
        if not drafts:
            return self.constraints.edits(self.output)
        return self.constraints.edits_behind(self.output, self.drafts[:drafts])


def distances(places: Int32s, start: int | None) -> Int32s:
    """How far tokens at ``places`` stand behind the first that attends to the row's item, int32 [tokens]: negative for
    those before it, and for all where there is none (``start`` is None).
    """
    return np.full_like(places, -1) if start is None else places - np.int32(start)


def learn(slots: Sequence[Slot], tokens: Sequence[Sequence[int]], drafts: Sequence[tuple[int, ...]]) -> None:
    """Take in what another stage has sampled for the rows of these ``slots``, and what it has drafted behind that; no
    ``drafts`` are none for any row.
    """
    for slot, sampled, following in zip(slots, tokens, drafts or ((),) * len(slots), strict=True):
        slot.drafts = following
        for token in sampled:
            slot.append(token)


def _find_fault(begin: Begin, vocab_size: int) -> str | None:
    """Why the ids of a prompt can't be computed, or None.

    Clients check ids as well. This is the worker's own last line: an id outside the embedding would read beyond a
    device's memory and take all requests with it.
    """
    ids = np.array(begin.ids, np.int64)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if not len(outside):
        return None
    known = f"0 to {vocab_size - 1}"
    return f"token {outside[0]} is not in the vocabulary ({known}): check that the tokenizer is the model's"


class Slots:
    """All slots of a worker, changed by plans alone; ``with_media`` of them have media."""

    def __init__(
        self,
        *,
        capacity: int,
        groups: Sequence[KVGroup],
        block_size: int,
        blocks: int,
        vocab_size: int,
        processors: Processors,
    ) -> None:
        self.tables = tuple(
            BlockTables(capacity, blocks)
            if group.cross_len is None
            else BlockTables(capacity, -(-group.cross_len // block_size), full_width=True)
            for group in groups
        )
        self.with_media = 0
        self._slots: dict[int, Slot] = {}
        self._vocab_size = vocab_size
        self._processors = processors

    def of(self, rows: Rows) -> list[Slot]:
        """The slot of each row."""
        slots = self._slots
        return [slots[number] for number in rows.slot]

    @property
    def all(self) -> Mapping[int, Slot]:
        """Every slot that is taken, by its number."""
        return self._slots

    def apply(self, plan: StepPlan, faults: Mapping[int, str] = {}) -> None:
        """End slots, begin new ones, append blocks and replace others, in this order. ``faults`` are those of
        adapters, by slot.
        """
        for number in plan.end:
            slot = self._slots.pop(number)
            self.with_media -= bool(slot.begin.media)
            end_processing(slot.processing)
        self._begin(plan.begin)
        for begin in plan.begin if faults else ():
            if begin.adapter is not None and begin.adapter in faults:
                self._slots[begin.slot].fail(faults[begin.adapter])
        self._extend(plan.blocks)
        for kept in plan.kept_states:
            for place, block in enumerate(kept.blocks):
                self.tables[kept.group + place].replace(kept.slot, kept.column, block)

    def _begin(self, entering: Iterable[Begin]) -> None:
        for begin in entering:
            assert begin.slot not in self._slots, f"slot {begin.slot} is taken"
            slot = self._slots[begin.slot] = Slot(begin, self._vocab_size)
            self._begin_processing(slot)
            self.with_media += bool(begin.media)
            for table in self.tables:
                table.clear(begin.slot)

    def _begin_processing(self, slot: Slot) -> None:
        params = slot.begin.params
        if params is None or not params.logits_processors or slot.fault is not None:
            return
        try:
            slot.processing = self._processors.begin(params.logits_processors, slot)
        except LsvError as error:
            slot.fail(error.message)

    def _extend(self, grown: Iterable[Grown]) -> None:
        for change in grown:
            if change.groups == 1:
                self.tables[change.group].extend(change.slot, change.blocks)
                continue
            columns = np.array(change.blocks, np.int32).reshape(-1, change.groups)
            for place in range(change.groups):
                self.tables[change.group + place].extend(change.slot, columns[:, place])


def must_know(slot: Slot, start: int) -> bool:
    """Whether the host must know a token that is still being sampled, the row's first, to say what may follow."""
    return len(slot.tokens) <= start and slot.constrained
