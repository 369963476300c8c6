"""The results of a step: sampled tokens, vectors and prompt log probabilities, read from hidden states."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.scheduler.plan import AwaitMasks, Logprobs, Rows, StepPlan, StepResult
from lsv_runtime.devices.staging import Fetched, fetch, send
from lsv_runtime.drafts.drafter import Draftable, Drafter, Passage, verify
from lsv_runtime.nn.pooling.states import Pool
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.checks.finiteness import StateCheck
from lsv_runtime.worker.inputs import Batch
from lsv_runtime.worker.runner import ForwardResult
from lsv_runtime.worker.sampling.logprobs import Described, describe, join
from lsv_runtime.worker.sampling.masks import NO_MASKS, read_masks
from lsv_runtime.worker.sampling.sampler import NOT_FINITE, accept_typical, describe_rows, draw_rows, why_failed
from lsv_runtime.worker.slots import Slot


class Head(Protocol):
    """Hidden states [rows, hidden], the step's from ``first`` on -> logits [rows, vocabulary]."""

    def __call__(self, states: Tensor, first: int = 0) -> Tensor: ...


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
    drafts: tuple[int, ...] = ()
    """How many drafts are verified in each of ``sampled``; empty where none are. A token is sampled behind each."""

    @property
    def size(self) -> int:
        """How many tokens are sampled."""
        return len(self.sampled) + sum(self.drafts)

    def places(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Flat indices of the tokens whose hidden states are needed: sampled, pooled, then scored ones."""
        if len(self.sampled) == batch.rows and not self.scored and not self.drafts:
            return batch.last
        first = batch.last - batch.layout.query[: batch.rows] + 1
        runs = [first[row] + np.arange(start, stop) for row, (start, stop) in self.pooled.items()]
        runs += [first[row] + np.arange(count) for row, count in self.scored.items()]
        last = batch.last[[*self.sampled]]
        if not self.drafts:
            return np.concatenate((last, *runs))
        verified = [np.arange(end - more, end + 1) for end, more in zip(last.tolist(), self.drafts, strict=True)]
        return np.concatenate((*verified, *runs))


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
    drafts = tuple(rows.drafts[row] for row in sampled) if any(rows.drafts) else ()
    return Outputs(tuple(sampled), pooled, scored, faults, drafts)


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
    drafter: Drafter | None = None
    """What proposes tokens to verify in the next step."""
    typical: tuple[float, float] | None = None
    """The terms by which drafts are accepted that are typical; None accepts what is drawn."""
    lost: tuple[int, ...] = ()
    """Which of the plan's loads failed."""
    check: StateCheck | None = None
    """Checks the states of rows that compute more tokens than they sample from; None without such rows."""
    drawn: Tensor | None = None
    """int64: the tokens of the rows ``outputs.sampled``, on the device; with drafts one for each of these before."""
    states: Tensor | None = None
    """[tokens, hidden]: what ``drawn`` was sampled from, for a drafter that reads states."""
    tapped: Tensor | None = None
    """[T, ...]: the states of all tokens that the drafter reads; None where it reads none."""
    firsts: Sequence[int] = ()
    """Where each row's first token is in ``tapped``."""
    coming: Fetched | None = None
    """The tokens on their way to the host."""
    described: Described | None = None
    """Log probabilities on their way, by place in ``drawn``."""
    scores: dict[int, list[Described]] = field(default_factory=dict)
    """By row, log probabilities of its prompt on their way."""
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    rejected: dict[int, int] = field(default_factory=dict)
    """By row, how many of its drafts were wrong or came after a wrong one."""
    proposed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By row, what is drafted behind its tokens."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    drafting: float = 0.0
    """Seconds that the drafter took."""
    broken: bool = False

    def places(self, batch: Batch) -> npt.NDArray[np.int64]:
        """As ``Outputs.places``, of the batch as it runs; notes where rows are whose states all matter."""
        if self.check is not None:
            self.check.locate(batch)
        if self.drafter is not None and self.drafter.reads_all:
            rows = len(self.slots)
            self.firsts = (batch.last[:rows] - batch.layout.query[:rows] + 1).tolist()
        return self.outputs.places(batch)

    def read(self, ran: ForwardResult, head: Head, agree: Agree) -> None:
        """Sample from the hidden states of ``outputs.places``, pool them, and score prompts with them."""
        outputs, hidden = self.outputs, ran.hidden
        self.tapped = ran.tapped
        self.failed |= outputs.faults
        if self.check is not None:
            self.check.read(ran.sound)
        if outputs.pooled or outputs.scored:
            pooled = [stop - start for start, stop in outputs.pooled.values()]
            sizes = [outputs.size, *pooled, *outputs.scored.values()]
            hidden, *spans = torch.split(hidden[: ran.wanted], sizes)
            first = outputs.size + sum(pooled)
            for row, states in zip(outputs.scored, spans[len(pooled) :], strict=True):
                self._score(row, states, first, head)
                first += len(states)
            if outputs.pooled:
                self._pool(spans[: len(pooled)])
        if outputs.sampled:
            self._sample(head(hidden), agree)
            if self.drafter is not None and self.drafter.reads_states and self.plan.rows.propose:
                self.states = hidden[: outputs.size].clone()  # a step launched meanwhile may overwrite them

    @property
    def latest(self) -> Tensor | None:
        """int64 [sampled]: the token of each sampled row that the next step goes on from, on the device.

        Where a row has drafts that is only known on the host, and nothing is launched that goes on from it before.
        """
        if self.drawn is None or not self.outputs.drafts:
            return self.drawn
        last = np.cumsum(np.array(self.outputs.drafts, np.int64) + 1) - 1
        return self.drawn[send(last, self.drawn.device)]

    @property
    def pending(self) -> bool:
        """Whether the host still has to read something from the device."""
        return self.coming is not None or bool(self.scores) or (self.check is not None and self.check.pending)

    def settle(self) -> None:
        """Read what has come from the device: append the sampled tokens to their slots."""
        if self.check is not None:
            self.failed |= dict.fromkeys(self.check.settle(), NOT_FINITE)
        for row, parts in self.scores.items():
            self._settle_score(row, parts)
        if self.coming is None:
            if self.tapped is not None:
                self._pass_on(self.tapped)
            return
        rows, tokens = self.outputs.sampled, self.coming.read().tolist()
        if self.outputs.drafts:
            self._settle_verified(tokens)
            self._propose()
            return
        self.failed |= {rows[place]: why for place, why in why_failed(tokens, self._slots_of(rows)).items()}
        for row, slot, token in zip(rows, self._slots_of(rows), tokens, strict=True):
            if row not in self.failed:
                slot.append(token)
                self.tokens[row] = (token,)
        if self.described is not None:
            self.logprobs |= {rows[place]: one for place, one in self.described.read().items()}
        if self.plan.rows.propose or self.tapped is not None:
            self._propose()

    def _settle_verified(self, tokens: Sequence[int]) -> None:
        """Of each row keep the tokens up to the first one that was not drafted.

        Those behind it were sampled from what is not the answer. Where one failed, the row ends before it and meets it
        again, unless it is the first.
        """
        described = {} if self.described is None else self.described.read()
        first = 0
        for row, drafts in zip(self.outputs.sampled, self.outputs.drafts, strict=True):
            slot, found = self.slots[row], tokens[first : first + drafts + 1]
            kept = verify(slot.drafts[:drafts], found) if row not in self.failed else ()
            if kept:
                for token in kept:
                    slot.append(token)
                self.tokens[row], self.rejected[row] = kept, drafts + 1 - len(kept)
                parts = [described[place] for place in range(first, first + len(kept)) if place in described]
                if parts:
                    self.logprobs[row] = join(parts)
            elif row not in self.failed:
                self.failed[row] = why_failed(found[:1], [slot])[0]
            first += drafts + 1

    def _propose(self) -> None:
        """Draft what may follow the tokens of the rows for which the plan wants that."""
        if self.tapped is not None:
            self._pass_on(self.tapped)
        rows, propose = self.outputs.sampled, self.plan.rows.propose
        drafts = self.outputs.drafts or (0,) * len(rows)
        began = time.perf_counter()
        drafting, asked, first = [], [], 0
        for row, slot, verified in zip(rows, self._slots_of(rows), drafts, strict=True):
            slot.drafts = ()
            if propose and propose[row] and row in self.tokens:
                state = None if self.states is None else self.states[first + len(self.tokens[row]) - 1]
                drafting.append((row, slot))
                most, salt = propose[row], slot.begin.salt
                asked.append(Draftable(slot.drafting, slot.ids, slot.prompt, most, slot.choice, salt, state))
            first += verified + 1
        if self.drafter is None or not drafting:
            return
        for (row, slot), ids in zip(drafting, self.drafter.propose(asked), strict=True):
            slot.drafts = self.proposed[row] = tuple(ids)[: propose[row]]
        self.drafting += time.perf_counter() - began

    def _pass_on(self, tapped: Tensor) -> None:
        """Give the drafter the states of the tokens that are the rows' and have another one behind them."""
        assert self.drafter is not None
        began, rows, passages = time.perf_counter(), self.plan.rows, []
        for row, (slot, first, start) in enumerate(zip(self.slots, self.firsts, rows.start, strict=True)):
            count = min(rows.count[row] - self.rejected.get(row, 0), len(slot.ids) - 1 - start)
            if count > 0 and row not in self.failed:
                passages.append(Passage(slot.drafting, slot.ids, start, tapped[first : first + count]))
        self.drafter.read(passages)
        self.drafting += time.perf_counter() - began

    def fail(self, why: str) -> None:
        """All rows have failed."""
        self.drawn = self.coming = self.described = self.check = None
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
                step=self.plan.step, seconds=seconds, tokens=nothing, kept=rows.count, failed=self.failed, broken=True,
                lost=self.lost, distrusted=tuple(self.failed),
            )  # fmt: skip
        return StepResult(
            step=self.plan.step,
            seconds=seconds,
            tokens=tuple(self.tokens.get(row, ()) for row in range(len(rows))),
            kept=self._kept() if self.rejected else rows.count,
            drafts=tuple(self.proposed.get(row, ()) for row in range(len(rows))) if rows.propose else (),
            drafting=self.drafting,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            vectors=self.vectors,
            failed=self._told() if self.failed else {},
            unencoded=self.unencoded,
            lost=self.lost,
            distrusted=tuple(row for row, why in self.failed.items() if why == NOT_FINITE),
            unwarmed=unwarmed,
        )

    def _kept(self) -> tuple[int, ...]:
        return tuple(count - self.rejected.get(row, 0) for row, count in enumerate(self.plan.rows.count))

    def _told(self) -> dict[int, str]:
        """By row, why it failed, as clients hear it."""
        return {row: why + self.suspects if why == NOT_FINITE else why for row, why in self.failed.items()}

    def _slots_of(self, rows: Sequence[int]) -> list[Slot]:
        return [self.slots[row] for row in rows]

    def _sample(self, logits: Tensor, agree: Agree) -> None:
        rows, plan = self.outputs.sampled, self.plan.rows
        slots = self._slots_of(rows)
        lengths = [plan.start[row] + plan.count[row] for row in rows]
        behind: Sequence[int] = ()
        if drafts := self.outputs.drafts:
            rows = tuple(row for row, more in zip(rows, drafts, strict=True) for _ in range(more + 1))
            slots = self._slots_of(rows)
            behind = [place for more in drafts for place in range(more + 1)]
            first = [length - more for length, more in zip(lengths, drafts, strict=True) for _ in range(more + 1)]
            lengths = [length + place for length, place in zip(first, behind, strict=True)]
        allowed = NO_MASKS if self.masks is None else read_masks(self.masks(), rows)
        drawn = draw_rows(logits, slots, lengths, self.ops, allowed, behind)
        if behind and self.typical is not None:
            drawn = accept_typical(logits, drawn, slots, lengths, behind, self.typical, allowed)
        self.drawn = agree(drawn)
        self.coming = fetch(self.drawn)
        self.described = describe_rows(logits, self.drawn, slots, lengths, self.ops, allowed, behind)

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

    def _score(self, row: int, hidden: Tensor, first: int, head: Head) -> None:
        """Log probabilities of the prompt tokens that follow the row's first ``len(hidden)`` tokens.

        Their states ``hidden`` are the step's from ``first`` on.
        """
        (slot,) = self._slots_of([row])
        start = self.plan.rows.start[row]
        following = slot.ids[start + 1 : start + 1 + len(hidden)].astype(np.int64)
        tokens, most = send(following, hidden.device), slot.params.prompt_logprobs or 0
        starts = range(first, first + len(hidden), _SCORED_AT_ONCE)
        parts = zip(torch.split(hidden, _SCORED_AT_ONCE), starts, torch.split(tokens, _SCORED_AT_ONCE), strict=True)
        self.scores[row] = [
            describe(head(states, start), chosen, [most] * len(chosen), op=self.ops.describe)
            for states, start, chosen in parts
        ]

    def _settle_score(self, row: int, parts: Sequence[Described]) -> None:
        found = [part.read() for part in parts]
        if any(len(positions) < len(part.rows) for positions, part in zip(found, parts, strict=True)):
            self.failed[row] = NOT_FINITE
        else:
            self.prompt_logprobs[row] = join(one for positions in found for one in positions.values())
