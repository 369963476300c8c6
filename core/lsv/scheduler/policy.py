"""In which order requests are served, and how much of a step prompts may take."""

from __future__ import annotations

from typing import Protocol

from lsv.request.group import RequestGroup
from lsv.scheduler.budget import StepCosts

Key = tuple[float, ...]
"""Lower goes first; those of equal keys share fairly between tenants, and go in order of arrival within one."""


class Policy(Protocol):
    """Asked when a request group is queued, and once per step."""

    def key(self, group: RequestGroup, now: float) -> Key:
        """How urgent the group is: the lowest key is admitted first, the highest preempted first."""
        ...

    def budget(self, running: int, costs: StepCosts) -> int:
        """The most prompt tokens of a step, with ``running`` requests in the batch."""
        ...


class Fcfs:
    """First come, first served."""

    def key(self, group: RequestGroup, now: float) -> Key:
        return ()

    def budget(self, running: int, costs: StepCosts) -> int:
        return costs.quick_tokens


class Priority(Fcfs):
    """Lower ``priority`` first; among equals, first come, first served."""

    def key(self, group: RequestGroup, now: float) -> Key:
        return (group.spec.priority,)
