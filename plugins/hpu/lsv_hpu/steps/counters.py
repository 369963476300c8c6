"""Counters of the Gaudi software, logged step by step: graphs compiled, ops that ran on the host instead.

The lines have the form that the Gaudi fork of vLLM gives them. Source: HabanaAI/vllm-fork, vllm/worker/hpu_worker.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from lsv_hpu.settings import HpuOptions
from lsv_hpu.steps.facts import StepFacts

log = logging.getLogger(__name__)


class StepCounter(NamedTuple):
    """A metric that is logged for steps in which it counted something, or for ``every`` step."""

    metric: str
    title: str
    every: bool

    def log(self, stats: Sequence[tuple[str, Any]], facts: StepFacts) -> None:
        """``stats`` are the metric's names and values, the total number first."""
        if not self.every and not stats[0][1]:
            return
        log.warning(
            "VLLM_HPU_STEP_%s: %s, is_prompt: %s, num_seqs: %d, max_context_len: %d, max_num_blocks %d",
            self.title, list(stats), facts.is_prompt, facts.rows, facts.longest, facts.blocks,
        )  # fmt: skip


def chosen_counters(options: HpuOptions) -> tuple[StepCounter, ...]:
    chosen = []
    if options.log_step_graph_compilation or options.log_step_graph_compilation_all:
        chosen.append(StepCounter("graph_compilation", "GRAPH_COMPILATION", options.log_step_graph_compilation_all))
    if options.log_step_cpu_fallbacks or options.log_step_cpu_fallbacks_all:
        chosen.append(StepCounter("cpu_fallback", "CPU_FALLBACK", options.log_step_cpu_fallbacks_all))
    return tuple(chosen)
