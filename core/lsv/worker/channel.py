"""Messages between an executor and its worker processes, on the channel of a ``Child``."""

from __future__ import annotations

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.scheduler.plan import Masks, StepPlan, StepResult


class Start(msgspec.Struct, frozen=True, tag=True):
    """Become rank ``rank``; the ranks meet at ``address``, see ``lsv.platform.Group``."""

    config: EngineConfig
    rank: int
    address: str


class Run(msgspec.Struct, frozen=True, tag=True):
    plan: StepPlan


class Masked(msgspec.Struct, frozen=True, tag=True):
    """The masks of the plan before, where that is ``masked``: they follow it at once."""

    masks: Masks


class Loading(msgspec.Struct, frozen=True, tag=True):
    stage: str
    done: int
    total: int


class Started(msgspec.Struct, frozen=True, tag=True):
    fit: Fit


class Ran(msgspec.Struct, frozen=True, tag=True):
    result: StepResult


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life from a worker that waits for orders."""


Order = Start | Run | Masked
Report = Loading | Started | Ran | Alive
