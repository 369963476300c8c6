"""When workers count which experts are chosen, and when they even out what the ranks have to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lsv.config import EngineConfig, ExpertOptions
from lsv.engine.executor import BalanceExperts, CountExperts
from lsv.engine.messages import ExpertCounts, Stats
from lsv.engine.parts.part import Part, PartContext
from lsv_base.processes.orders import WorkerOrder

log = logging.getLogger(__name__)

Ask = Callable[[WorkerOrder], Sequence[Mapping[str, float]]]
"""Has every worker carry out an order once nothing is in flight: what the ranks answer."""


def make_experts(context: PartContext) -> ExpertBalance | None:
    """None where experts stay where they are."""
    options = context.config.experts
    if options is None or not options.interval:
        return None
    return ExpertBalance(context.config, options, context.engine.control)


class ExpertBalance(Part):
    """When experts of an engine move: some steps are uncounted, then some are counted, then experts move."""

    name = "experts"

    def __init__(self, config: EngineConfig, options: ExpertOptions, ask: Ask) -> None:
        self._options, self._ask = options, ask
        self._ranks = config.topology.tensor
        self._counting = False
        self._began = 0
        self.counts = ExpertCounts()

    def complete(self, stats: Stats) -> Stats:
        return msgspec.structs.replace(stats, experts=self.counts)

    def before_step(self, step: int) -> None:
        """Count, or move experts, if it is time. Raises ``EngineDied``."""
        interval, window = self._options.interval, self._options.window
        if self._counting and step - self._began >= interval:
            self._counting, self._began = False, step
            self.counts = self._even_out(self.counts)
        if not self._counting and step - self._began >= interval - window:
            self._ask(CountExperts())
            self._counting = True

    def _even_out(self, before: ExpertCounts) -> ExpertCounts:
        """Who shares the experts of a stage answers the same, so its first rank's answer is that of its layers."""
        began = time.perf_counter()
        answers = self._ask(BalanceExperts())[:: self._ranks]
        total = {name: sum(answer.get(name, 0.0) for answer in answers) for name in ("mean", "most", "left", "moved")}
        if not total["most"]:
            return before  # nothing was counted: the engine has slept, or computed nothing
        after = ExpertCounts(
            measured=total["mean"] / total["most"],
            expected=total["mean"] / total["left"],
            moved_total=before.moved_total + int(total["moved"]),
            balanced_total=before.balanced_total + 1,
        )
        log.info(
            "experts: a rank's mean load was %.1f %% of the fullest rank's; with the %d experts that have moved (%.2f "
            "s) it would have been %.1f %%",
            100 * after.measured, total["moved"], time.perf_counter() - began, 100 * after.expected,
        )  # fmt: skip
        return after
