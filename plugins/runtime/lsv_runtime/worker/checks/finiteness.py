"""Checks the states of tokens without sampling, before other requests can find their blocks.

A row that samples is checked by its logits (``lsv_runtime.nn.sampling``). A chunk of a prompt has none, and of the last
chunk only the last token has. NaN or an infinity there fails the row, as it would in logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from lsv.scheduler.plan import Kind, StepPlan
from lsv_runtime.devices.staging import Fetched, fetch
from lsv_runtime.worker.inputs import Batch, Int64s


class StateCheck:
    """Checks some rows of one step: ``locate`` them, ``read`` without waiting, ``settle`` once the host needs it."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows
        self._firsts: Int64s = np.empty(0, np.int64)
        self._stops = self._firsts
        self._coming: Fetched | None = None

    def locate(self, batch: Batch) -> None:
        """Record where the rows' tokens are in the batch as it runs."""
        chosen = [*self._rows]
        self._stops = batch.last[chosen] + 1
        self._firsts = self._stops - batch.layout.query[chosen]

    def read(self, sound: Tensor | None) -> None:
        """Start copying ``sound`` bool [T], which tokens' states are finite; None if the step did not check."""
        self._coming = None if sound is None else fetch(sound)

    @property
    def pending(self) -> bool:
        return self._coming is not None

    def settle(self) -> Iterator[int]:
        """The rows with a token whose state is not finite."""
        if self._coming is None:
            return
        sound = self._coming.read()
        for row, first, stop in zip(self._rows, self._firsts.tolist(), self._stops.tolist(), strict=True):
            if not sound[first:stop].all():
                yield row


def make_check(plan: StepPlan) -> StateCheck | None:
    """The check for rows with tokens from which nothing is sampled; None without such rows.

    Steps of decoding rows never have any, and pay nothing for this.
    """
    if plan.kind == Kind.DECODE or not plan.rows:
        return None
    rows = plan.rows
    drafts = rows.drafts or (0,) * len(rows)
    columns = enumerate(zip(rows.count, drafts, rows.wants_logits, strict=True))
    chosen = [row for row, (count, more, wants) in columns if count > (1 + more if wants else 0)]
    return StateCheck(chosen) if chosen else None
