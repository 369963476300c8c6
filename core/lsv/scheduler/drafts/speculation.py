"""Speculation: which of the tokens that the worker has drafted are verified, and what became of them.

A step computes a row's last token and its drafts side by side, and samples behind each of them; the worker keeps what
it would have sampled anyway. So a draft costs time or saves it, and never changes an answer. How many are verified
follows from how often those of the request were right, and from how long steps of so many tokens take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lsv.capabilities import Padding
from lsv.kv.draft_states import DraftStates
from lsv.request.request import Request
from lsv.scheduler.drafts.costs import Costs
from lsv.scheduler.drafts.drafting import Drafting
from lsv.scheduler.job import Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.outcome import SpeculationCounts
from lsv.scheduler.plan import StepPlan, StepResult

_TOGETHER = 4
"""Steps from one with guesses to the next at least: what is due meanwhile is guessed together."""
_OFTEN = 4
"""In every so many steps it is looked at again what a draft costs, and how long one without any takes."""
_LOOK = 16
"""In every so many steps it is looked at again whether drafts pay while they do not."""
_LEAST_AHEAD = 0.3
"""The least chance for which a row waits for the one before, where it could be planned ahead."""

LookAhead = Callable[[Sequence[int]], tuple[int, bool] | None]
"""Of a guided sequence's drafts: how many are worth verifying, and whether its grammar refuses the next one; None where
that can't be known."""


class Speculation:
    """What the scheduler knows of drafts; see ``Drafting`` for what it knows of each sequence."""

    def __init__(self, limits: Limits, states: DraftStates | None = None) -> None:
        """``states`` is where recurrent layers leave theirs; None where no layer is recurrent."""
        self._most, self._limits, self._states = limits.drafts, limits, states
        self._most_rows = _most_rows(limits)
        self._costs = Costs()
        self._usual = Drafting()
        self._crowded = False
        self._least = 0.0
        """The chance below which a draft would not have been worth its time when that was looked at last."""
        self._priced = -_OFTEN
        """The step in which it was."""
        self._pause = 1
        """Steps from one with guesses to the next at least, while drafts do not pay."""
        self._step = self._next_guess = 0
        """The step that was asked for last, and the next one with guesses."""
        self._pay = True
        """Whether drafts were worth making when that was looked at last. While they are not it is at every guess."""
        self._learns = True
        """Whether it is learnt from every step how long it takes. While drafts do not pay some are enough."""
        self._drafted: dict[int, Job] = {}
        """By their requests, the jobs for which anything is proposed; some may have ended since."""
        self._rows = self._drafts = self._emitted = 0
        self._by_place = [0] * limits.drafts

    @property
    def counts(self) -> SpeculationCounts:
        return SpeculationCounts(
            self._rows, self._drafts, sum(self._by_place), tuple(self._by_place), emitted=self._emitted
        )

    def open(self, request: Request) -> Drafting | None:
        """Of a new sequence; None where nothing is drafted: with logits processors, which must have seen a token before
        the next, and where nothing is sampled.
        """
        sampling = request.sampling
        if sampling is None or sampling.logits_processors:
            return None
        return Drafting(self._usual.chance, self._usual.supply)

    def is_crowded(self, requests: int) -> bool:
        """Whether so many requests are under way that nobody drafts; until this is asked again nothing is drafted."""
        self._crowded = self._limits.drafting_rows is not None and requests > self._limits.drafting_rows
        return self._crowded

    def choose(self, ready: Sequence[Job], tokens: int) -> list[tuple[Job, int]]:
        """How many drafts of ``ready`` jobs are worth verifying in a step that may have ``tokens``; none are left out.

        One by one, the likeliest first, as long as the step gives more tokens in a second.
        """
        if not self._drafted:
            return []
        for id in [id for id, job in self._drafted.items() if job.ended or job.drafting is None]:
            del self._drafted[id]
        drafted = [
            (place, job, job.drafting)
            for place, job in enumerate(ready)
            if job.drafting is not None and job.drafting.proposed and not job.in_flight
        ]
        chances = [(chance, place) for place, job, drafting in drafted for chance in self._chances(job, drafting)]
        room = min(tokens - len(ready), _room(self._limits.padding, len(ready), self._limits.max_num_batched_tokens))
        if not chances or room <= 0:
            return []
        chances.sort(key=lambda chance: -chance[0])  # drafts of one row stay in order
        taken = chances[: min(room, self._worthwhile(len(ready), [chance for chance, _ in chances]))]
        counts: dict[int, int] = {}
        for _, place in taken:
            counts[place] = counts.get(place, 0) + 1
        return [(ready[place], count) for place, count in counts.items()]

    def _chances(self, job: Job, drafting: Drafting) -> list[float]:
        count = min(len(drafting.proposed), self._end(job) - job.planned - 1)
        return [drafting.chance**place for place in range(1, count + 1)]

    def _worthwhile(self, rows: int, chances: Sequence[float]) -> int:
        """How many drafts, of descending chance, a step of so many rows should have."""
        return self._costs.best_count(rows, chances) if self._limits.adaptive_drafts else len(chances)

    def ask(self, plan: StepPlan, jobs: Sequence[Job]) -> StepPlan:
        """The plan with what is to be drafted behind its rows."""
        self._step += 1
        if self._crowded or len(jobs) > self._most_rows:
            return plan
        if self._limits.adaptive_drafts and self._skips(len(jobs)):
            return plan
        columns = zip(jobs, plan.rows.start, plan.rows.wants_logits, strict=True)
        most = [self._fitting(job, start) if samples else 0 for job, start, samples in columns]
        wanted = self._wanted(jobs, most) if self._limits.adaptive_drafts else most
        if not any(wanted):
            return plan
        return msgspec.structs.replace(plan, rows=msgspec.structs.replace(plan.rows, propose=tuple(wanted)))

    def _skips(self, rows: int) -> bool:
        """Whether nothing is asked for in a step, without looking at its rows: as often as that may be."""
        if self._pay:
            return self._costs.is_stale(rows)
        return bool(self._step % _LOOK) and not self._guesses

    @property
    def _guesses(self) -> bool:
        """Whether it is time to guess again."""
        return self._step >= self._next_guess

    def _fitting(self, job: Job, start: int) -> int:
        """How many drafts behind the row of a job that begins at ``start`` could be verified."""
        return 0 if job.drafting is None else max(0, min(self._most, self._end(job) - start - 2))

    def _end(self, job: Job) -> int:
        """How many tokens of a job may be computed as drafts or before them."""
        longest = self._limits.drafting_length
        return job.max_planned if longest is None else min(job.max_planned, longest)

    def _wanted(self, jobs: Sequence[Job], most: Sequence[int]) -> list[int]:
        """How many drafts, up to ``most``, would pay behind the row of each job.

        Where none would, one is asked for now and then, to be held against what comes: of all rows whose turn it is in
        the same step, since making the first one takes longest.
        """
        if self._step >= self._priced + _OFTEN:
            self._priced, self._least = self._step, self._costs.least_chance(len(jobs), self._most)
            self._pause = self._costs.guess_pause(len(jobs))
        wanted = [
            job.drafting.count(fitting, self._least) if fitting and job.drafting is not None else 0
            for job, fitting in zip(jobs, most, strict=True)
        ]
        asked = [(job.drafting, count) for job, count in zip(jobs, wanted, strict=True) if count and job.drafting]
        self._pay = self._costs.pay(asked, len(jobs))
        self._learns = self._pay or not self._costs.alone(len(jobs))
        if not self._pay:
            wanted = [0] * len(wanted)
        if guesses := self._guesses:
            self._next_guess = self._step + max(self._pause, _TOGETHER)
        for place, (job, fitting) in enumerate(zip(jobs, most, strict=True)):
            if not fitting or job.drafting is None:
                continue
            job.drafting.is_guess = not wanted[place]
            if guesses and not wanted[place] and self._step >= job.drafting.turn:
                wanted[place] = 1
                job.drafting.turn = self._step + job.drafting.pause
        return wanted

    def settle(self, plan: StepPlan, jobs: Sequence[Job], result: StepResult) -> None:
        """Take back what was planned for drafts that were wrong, and learn from all."""
        rows = plan.rows
        if rows.propose:
            self._settle_asked(plan, jobs, result)
        if not rows.drafts:
            if (self._learns or rows.propose or not plan.step % _OFTEN) and rows and max(rows.count) == 1:
                self._costs.learn(plan, result)
            if self._drafted or result.drafts:
                self._settle_singles(jobs, result)
            return
        if all(count == 1 + drafts for count, drafts in zip(rows.count, rows.drafts, strict=True)):
            self._costs.learn(plan, result)
        for row, (job, drafts, tokens) in enumerate(zip(jobs, rows.drafts, result.tokens, strict=True)):
            if drafts:
                rejected = rows.count[row] - result.kept[row]
                job.planned -= rejected
                if self._states is not None:
                    self._states.settle(job.table, rows.start[row] + result.kept[row], rejected)
            if tokens and job.drafting is not None:
                self._settle_row(job, job.drafting, drafts, tokens)
                self._take_proposed(job, job.drafting, result.drafts[row] if result.drafts else ())

    def _settle_asked(self, plan: StepPlan, jobs: Sequence[Job], result: StepResult) -> None:
        """Drafts were asked for: how long it took to make them, and whether there are any."""
        asked, drafts = plan.rows.propose, result.drafts
        if result.drafting:
            self._costs.learn_making(plan, result.drafting)
        for row, (job, wanted, tokens) in enumerate(zip(jobs, asked, result.tokens, strict=True)):
            if wanted and tokens and job.drafting is not None:
                found = bool(drafts) and bool(drafts[row])
                job.drafting.note_supply(found=found)
                self._usual.note_supply(found=found)

    def _settle_singles(self, jobs: Sequence[Job], result: StepResult) -> None:
        """Of a step without drafts, which most are where they do not pay: it must take hardly any time."""
        proposed = result.drafts
        for row, job in enumerate(jobs):
            drafting = job.drafting
            if drafting is not None and (proposed or drafting.proposed or drafting.refused) and result.tokens[row]:
                self._settle_row(job, drafting, 0, result.tokens[row])
                self._take_proposed(job, drafting, proposed[row] if proposed else ())

    def _take_proposed(self, job: Job, drafting: Drafting, ids: tuple[int, ...]) -> None:
        drafting.proposed, drafting.refused = ids, False
        if ids:
            self._drafted[job.request.id] = job
        else:
            self._drafted.pop(job.request.id, None)
        self.update_waits(job)

    def cut(self, job: Job, look_ahead: LookAhead) -> None:
        """Keep the drafts of a guided job that its grammar allows: one that it refuses is wrong. Where that can't be
        known, nothing more is drafted for it.
        """
        drafting = job.drafting
        if drafting is None or not drafting.proposed:
            return
        seen = look_ahead(drafting.proposed)
        if seen is None:
            job.drafting = None
        else:
            count, drafting.refused = seen
            drafting.proposed = drafting.proposed[:count]

    def update_waits(self, job: Job) -> None:
        """Find out whether the job's next row waits for its last token."""
        drafts = job.drafting is not None and self._waits(job.drafting)
        job.waits = job.guided or self._limits.stages > 1 or drafts

    def _settle_row(self, job: Job, drafting: Drafting, drafts: int, tokens: tuple[int, ...]) -> None:
        """A row with drafts tells how many were right; one without, whether the first one would have been."""
        said = _said(job, tokens)
        if drafts:
            accepted = min(len(tokens) - 1, said)
            verified = drafts + (drafting.refused and drafts == len(drafting.proposed))
        elif drafting.proposed:
            accepted, verified = int(tokens[0] == drafting.proposed[0]), 1
            if accepted:
                self._next_guess = min(self._next_guess, self._step + max(self._pause // 4, _TOGETHER))
        elif drafting.refused:
            accepted, verified = 0, 1
        else:
            return
        drafting.note(accepted, verified)
        self._usual.note(accepted, verified)
        if drafts and not job.ended:
            before = job.request.drafted or (0, 0)
            job.request.drafted = (before[0] + drafts, before[1] + accepted)
            self._rows += 1
            self._drafts += drafts
            self._emitted += said
            for place in range(accepted):
                self._by_place[place] += 1

    def _waits(self, drafting: Drafting) -> bool:
        """Whether it is better to wait for the next token, and verify drafts behind it, than to plan ahead."""
        least = max(self._least, _LEAST_AHEAD) if self._limits.adaptive_drafts and self._limits.depth > 1 else 0.0
        return bool(drafting.proposed) and not drafting.is_guess and drafting.chance >= least


def _most_rows(limits: Limits) -> int:
    """The most rows of a step that can have drafts."""
    if limits.padding is None:
        return limits.max_num_seqs
    tokens = limits.max_num_batched_tokens
    return max((rows for rows in limits.padding.rows if _room(limits.padding, rows, tokens) > 0), default=0)


def _said(job: Job, tokens: tuple[int, ...]) -> int:
    """How many of ``tokens`` are the answer's: those up to its end."""
    return next((place for place, token in enumerate(tokens, 1) if token in job.stop_ids), len(tokens))


def _room(padding: Padding | None, rows: int, tokens: int) -> int:
    """How many drafts a step of so many rows has room for. Where prompts are padded, one of them must hold it."""
    if padding is None:
        return tokens
    fitting = [size for size in padding.rows if size >= rows]
    longest = max((size for size in padding.queries if fitting and fitting[0] * size <= tokens), default=1)
    return rows * (longest - 1)
