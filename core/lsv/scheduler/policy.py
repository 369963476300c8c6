"""In which order requests are served, and how much of a step prompts may take."""

from __future__ import annotations

from typing import Protocol

from lsv.request.request import Request
from lsv.scheduler.budget import StepCosts

Key = tuple[float, ...]
"""Lower goes first; equal keys go in the order in which the scheduler got them."""


class Policy(Protocol):
    """Asked when a request is queued, and once per step."""

    def key(self, request: Request, now: float) -> Key:
        """The request's place in line: the first is admitted first, the last preempted first."""
        ...

    def budget(self, running: int, costs: StepCosts) -> int:
        """The most prompt tokens of a step, with ``running`` requests in the batch."""
        ...


class Fcfs:
    """First come, first served."""

    def key(self, request: Request, now: float) -> Key:
        return (request.arrival,)

    def budget(self, running: int, costs: StepCosts) -> int:
        return costs.quick_tokens


class Priority(Fcfs):
    """Lower ``priority`` first; among equals, first come, first served."""

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.arrival)
