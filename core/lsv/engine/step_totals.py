"""Totals over the steps of an engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from lsv.engine.messages import STEP_TOKENS, Stats
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.scheduler.scheduler import Scheduler


class StepTotals:
    """Adds up what steps computed and how long they took."""

    def __init__(self) -> None:
        self.steps = 0
        self._tokens = self._broken = self._nonfinite = self._unwarmed = 0
        self._seconds = self._model_seconds = 0.0
        self._by_tokens = [0] * (len(STEP_TOKENS) + 1)

    def add(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """A step has been settled, so many seconds after it was begun."""
        self.steps += 1
        if plan.tokens:
            self._tokens += plan.tokens
            self._by_tokens[bisect_left(STEP_TOKENS, plan.tokens)] += 1
        self._broken += result.broken
        self._nonfinite += 0 if result.broken else len(result.distrusted)
        self._unwarmed += result.unwarmed
        self._seconds += seconds
        self._model_seconds += result.seconds

    def make_stats(self, scheduler: Scheduler, *, rejected: int, parts: Mapping[str, float]) -> Stats:
        """The engine's figures: these totals beside the scheduler's counts."""
        counts = scheduler.counts
        return Stats(
            running=counts.running,
            waiting=counts.waiting,
            deferred=counts.deferred,
            kv_usage=counts.kv_usage,
            preemptions_total=counts.preemptions,
            rejections_total=rejected,
            prompt_tokens_total=counts.prompt_tokens,
            generation_tokens_total=counts.generation_tokens,
            prefix_queries_total=counts.prefix_queries,
            prefix_hits_total=counts.prefix_hits,
            nonfinite_total=self._nonfinite,
            unwarmed_total=self._unwarmed,
            steps_total=self.steps,
            tokens_total=self._tokens,
            step_tokens=tuple(self._by_tokens),
            failed_steps_total=self._broken,
            step_seconds_total=self._seconds,
            model_seconds_total=self._model_seconds,
            speculation=scheduler.speculation,
            adapters=scheduler.adapter_requests,
            offload=scheduler.offload,
            parts=parts,
        )
