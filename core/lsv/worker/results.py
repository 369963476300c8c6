"""The results of a step: sampled tokens, vectors and prompt log probabilities, read from hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.devices.staging import Fetched, fetch, send
from lsv.nn.pooling.states import Pool
from lsv.nn.sampling import Sampling
from lsv.scheduler.plan import AwaitMasks, Logprobs, Rows, StepPlan, StepResult
from lsv.worker.inputs import Batch
from lsv.worker.logprobs import Described, describe, join
from lsv.worker.masks import NO_MASKS, read_masks
from lsv.worker.runner import ForwardResult
from lsv.worker.sampler import NOT_FINITE, describe_rows, draw_rows, why_failed
from lsv.worker.slots import Slot

Head = Callable[[Tensor], Tensor]
"""Hidden states [rows, hidden] -> logits [rows, vocabulary]."""

Agree = Callable[[Tensor], Tensor]
"""Sampled ids of this rank, int64 on the device -> those of rank 0, which all ranks go on with."""

_SCORED_AT_ONCE = 128
"""Prompt positions whose logits are computed at a time."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """A plan's rows by what they yield."""

    sampled: tuple[int, ...]
    """Rows that a token is sampled for."""
    pooled: dict[int, tuple[int, int]]
    """For rows that are pooled: the first and one more than the last of the row's tokens whose states are gathered."""
    scored: dict[int, int]
    """For rows with prompt log probabilities: how many tokens, from the row's first on, predict a prompt token."""
    faults: dict[int, str]
    """Rows that yield nothing, and why."""

    def places(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Flat indices of the tokens whose hidden states are needed: sampled, pooled, then scored ones."""
        if len(self.sampled) == batch.rows and not self.scored:
            return batch.last
        first = batch.last - batch.layout.query[: batch.rows] + 1
        runs = [first[row] + np.arange(start, stop) for row, (start, stop) in self.pooled.items()]
        runs += [first[row] + np.arange(count) for row, count in self.scored.items()]
        return np.concatenate((batch.last[[*self.sampled]], *runs))


def select_outputs(rows: Rows, slots: Sequence[Slot]) -> Outputs:
    """Sort a plan's rows by what they yield; rows of slots with a fault yield nothing."""
    sampled: list[int] = []
    pooled: dict[int, tuple[int, int]] = {}
    scored: dict[int, int] = {}
    faults: dict[int, str] = {}
    for row, (slot, wants_logits) in enumerate(zip(slots, rows.wants_logits, strict=True)):
        if slot.simple:
            if wants_logits:
                sampled.append(row)
            continue
        if slot.fault is not None:
            faults[row] = slot.fault
            continue
        if slot.gathered is not None:
            start, count = rows.start[row], rows.count[row]
            if (span := slot.gathered.span(start, count, ends=wants_logits)) is not None:
                pooled[row] = span
            continue
        if wants_logits:
            sampled.append(row)
        count = _positions_to_score(slot, rows.start[row], rows.count[row])
        if count > 0:
            scored[row] = count
    return Outputs(tuple(sampled), pooled, scored, faults)


def _positions_to_score(slot: Slot, start: int, count: int) -> int:
    """How many of the row's tokens predict a token of the prompt, if the request wants to know."""
    params = slot.begin.params
    if params is None or params.prompt_logprobs is None:
        return 0
    return min(start + count, slot.prompt - 1) - start


@dataclass(slots=True)
class ResultBuilder:
    """Gathers a step's results row by row.

    First ``read`` what the device computes, without waiting for it; then ``settle`` when the host has to know it.
    """

    plan: StepPlan
    slots: Sequence[Slot]
    """The slot of each row."""
    outputs: Outputs
    ops: Sampling = field(default_factory=Sampling)
    pool: Pool = field(default_factory=Pool)
    unencoded: Mapping[bytes, str] = field(default_factory=dict)
    """By hash, why media could not be encoded in this step."""
    masks: AwaitMasks | None = None
    """What rows with grammars may sample."""
    suspects: str = ""
    """What is added to the reason of rows whose numbers are not finite."""
    drawn: Tensor | None = None
    """int64: the tokens of the rows ``outputs.sampled``, on the device."""
    coming: Fetched | None = None
    """The same on their way to the host."""
    described: Described | None = None
    """Log probabilities on their way, by place in ``outputs.sampled``."""
    scores: dict[int, list[Described]] = field(default_factory=dict)
    """By row, log probabilities of its prompt on their way."""
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    broken: bool = False

    def read(self, ran: ForwardResult, head: Head, agree: Agree) -> None:
        """Sample from the hidden states of ``outputs.places``, pool them, and score prompts with them."""
        outputs, hidden = self.outputs, ran.hidden
        self.failed |= outputs.faults
        if outputs.pooled or outputs.scored:
            pooled = [stop - start for start, stop in outputs.pooled.values()]
            sizes = [len(outputs.sampled), *pooled, *outputs.scored.values()]
            hidden, *spans = torch.split(hidden[: ran.wanted], sizes)
            for row, states in zip(outputs.scored, spans[len(pooled) :], strict=True):
                self._score(row, states, head)
            if outputs.pooled:
                self._pool(spans[: len(pooled)])
        if outputs.sampled:
            self._sample(head(hidden), agree)

    @property
    def pending(self) -> bool:
        """Whether the host still has to read something from the device."""
        return self.coming is not None or bool(self.scores)

    def settle(self) -> None:
        """Read what has come from the device: append the sampled tokens to their slots."""
        for row, parts in self.scores.items():
            self._settle_score(row, parts)
        if self.coming is None:
            return
        rows, tokens = self.outputs.sampled, self.coming.read().tolist()
        self.failed |= {rows[place]: why for place, why in why_failed(tokens, self._slots_of(rows)).items()}
        for row, slot, token in zip(rows, self._slots_of(rows), tokens, strict=True):
            if row not in self.failed:
                slot.append(token)
                self.tokens[row] = (token,)
        if self.described is not None:
            self.logprobs |= {rows[place]: one for place, one in self.described.read().items()}

    def fail(self, why: str) -> None:
        """All rows have failed."""
        self.drawn = self.coming = self.described = None
        self.broken, self.scores = True, {}
        self.failed = dict.fromkeys(range(len(self.plan.rows)), why)

    def stand_in(self) -> None:
        """Give rows that failed a token all the same: a step that has been planned already goes on from it."""
        for row in self.failed:
            slot = self.slots[row]
            if self.plan.rows.wants_logits[row] and slot.begin.pooling is None and row not in self.tokens:
                slot.append(0)

    def result(self, seconds: float, *, unwarmed: bool) -> StepResult:
        rows = self.plan.rows
        if self.broken:
            nothing = ((),) * len(rows)
            return StepResult(
                step=self.plan.step, seconds=seconds, tokens=nothing, kept=rows.count, failed=self.failed, broken=True
            )  # fmt: skip
        return StepResult(
            step=self.plan.step,
            seconds=seconds,
            tokens=tuple(self.tokens.get(row, ()) for row in range(len(rows))),
            kept=rows.count,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            vectors=self.vectors,
            failed=self._told() if self.failed else {},
            unencoded=self.unencoded,
            nonfinite=sum(why == NOT_FINITE for why in self.failed.values()),
            unwarmed=unwarmed,
        )

    def _told(self) -> dict[int, str]:
        """By row, why it failed, as clients hear it."""
        return {row: why + self.suspects if why == NOT_FINITE else why for row, why in self.failed.items()}

    def _slots_of(self, rows: Sequence[int]) -> list[Slot]:
        return [self.slots[row] for row in rows]

    def _sample(self, logits: Tensor, agree: Agree) -> None:
        rows, plan = self.outputs.sampled, self.plan.rows
        slots = self._slots_of(rows)
        lengths = [plan.start[row] + plan.count[row] for row in rows]
        allowed = NO_MASKS if self.masks is None else read_masks(self.masks(), rows)
        self.drawn = agree(draw_rows(logits, slots, lengths, self.ops, allowed))
        self.coming = fetch(self.drawn)
        self.described = describe_rows(logits, self.drawn, slots, self.ops)

    def _pool(self, spans: Sequence[Tensor]) -> None:
        """Gather the states of pooled rows, and make the vectors of those whose prompts end in this step."""
        rows = self.plan.rows
        for (row, (first, _)), states in zip(self.outputs.pooled.items(), spans, strict=True):
            gathered = self.slots[row].gathered
            assert gathered is not None
            gathered.add(states, rows.start[row] + first)
        ended = [row for row in self.outputs.pooled if rows.wants_logits[row]]
        for row, vector in zip(ended, self.pool(self._slots_of(ended)), strict=True):
            if vector is None:
                self.failed[row] = NOT_FINITE
            else:
                self.vectors[row] = vector

    def _score(self, row: int, hidden: Tensor, head: Head) -> None:
        """Log probabilities of the prompt tokens that follow the row's first ``len(hidden)`` tokens."""
        (slot,) = self._slots_of([row])
        start = self.plan.rows.start[row]
        following = slot.ids[start + 1 : start + 1 + len(hidden)].astype(np.int64)
        tokens, most = send(following, hidden.device), slot.params.prompt_logprobs or 0
        parts = zip(torch.split(hidden, _SCORED_AT_ONCE), torch.split(tokens, _SCORED_AT_ONCE), strict=True)
        self.scores[row] = [
            describe(head(states), chosen, [most] * len(chosen), op=self.ops.describe) for states, chosen in parts
        ]

    def _settle_score(self, row: int, parts: Sequence[Described]) -> None:
        found = [part.read() for part in parts]
        if any(len(positions) < len(part.rows) for positions, part in zip(found, parts, strict=True)):
            self.failed[row] = NOT_FINITE
        else:
            self.prompt_logprobs[row] = join(one for positions in found for one in positions.values())
