"""In which order requests are served, and how much of a step prompts may take."""

from __future__ import annotations

from typing import Protocol

from lsv.request.group import RequestGroup
from lsv.scheduler.budget import StepCosts

Key = tuple[float, ...]
"""Lower goes first."""


class Policy(Protocol):
    """Asked when a request group is queued, and once per step."""

    def key(self, group: RequestGroup, now: float) -> Key:
        """The group's urgency among the groups of its tenant: the lowest key is admitted first.

        Groups with equal keys are admitted in order of arrival.
        """
        ...

    def key_between_tenants(self, group: RequestGroup, now: float) -> Key:
        """The group's urgency against other tenants: the lowest key is admitted first, the highest is preempted.

        Tenants whose groups have equal keys share the engine fairly. A key that a client can choose freely lets one
        tenant starve all others, so bound it by what the operator grants the tenant.
        """
        ...

    def budget(self, running: int, costs: StepCosts) -> int:
        """The most prompt tokens of a step, with ``running`` requests in the batch."""
        ...


class Fcfs:
    """First come, first served."""

    def key(self, group: RequestGroup, now: float) -> Key:
        return ()

    def key_between_tenants(self, group: RequestGroup, now: float) -> Key:
        return ()

    def budget(self, running: int, costs: StepCosts) -> int:
        return costs.quick_tokens


class Priority(Fcfs):
    """Lower ``priority`` first; among equals, first come, first served.

    Any client can set a priority. Before other tenants it counts down to ``priority_at_least`` only.
    """

    def key(self, group: RequestGroup, now: float) -> Key:
        return (group.spec.priority,)

    def key_between_tenants(self, group: RequestGroup, now: float) -> Key:
        return (max(group.spec.priority, group.spec.priority_at_least),)
