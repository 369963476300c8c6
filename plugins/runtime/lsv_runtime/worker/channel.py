"""Messages between an executor and its worker processes, on the channel of a ``Child``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.scheduler.plan import Masks, StepPlan, StepResult
from lsv_base.errors import ErrorRecord


class Start(msgspec.Struct, frozen=True, tag=True):
    """Become rank ``rank``; the ranks meet at ``address``, see ``lsv_runtime.devices.communicator.Group``."""

    config: EngineConfig
    rank: int
    address: str
    place: tuple[int, int] | None = None
    """Which one it is of how many ranks on its machine, which share its devices; None: all ranks are on one."""
    nearby: str = ""
    """Where groups meet that are all on its machine, if not where the others do; see ``lsv_runtime.pipeline.meeting``.
    """


class Run(msgspec.Struct, frozen=True, tag=True):
    plan: StepPlan


class Masked(msgspec.Struct, frozen=True, tag=True):
    """The masks of the plan before, where that is ``masked``: they follow it at once."""

    masks: Masks


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """What the last stage has sampled for the rows of a plan: for ranks of the stages before it, in their order."""

    tokens: tuple[tuple[int, ...], ...]
    drafts: tuple[tuple[int, ...], ...] = ()
    """What it drafts behind these, see ``StepResult.drafts``."""


class Control(msgspec.Struct, frozen=True, tag=True):
    """A ``WorkerOrder`` as ``encode_order`` gives it."""

    order: str
    body: bytes


class Controlled(msgspec.Struct, frozen=True, tag=True):
    """A ``Control`` was carried out, or refused."""

    error: ErrorRecord | None = None
    answer: Mapping[str, float] = {}


class Loading(msgspec.Struct, frozen=True, tag=True):
    stage: str
    done: int
    total: int


class Started(msgspec.Struct, frozen=True, tag=True):
    fit: Fit


class Ran(msgspec.Struct, frozen=True, tag=True):
    result: StepResult


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """What the first stage has to tell of a plan in which it was to encode media, see ``StepResult.unencoded``."""

    unencoded: Mapping[bytes, str]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life from a worker that waits for orders."""


Order = Start | Run | Masked | Sampled | Control
Report = Loading | Started | Ran | Encoded | Controlled | Alive
