"""The core's own manifest: scheduling policies, declared through the door every plugin uses."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.hooks import hookimpl
from lsv.offers import PolicyOffer

api = 2


@hookimpl
def lsv_policies() -> Iterable[PolicyOffer]:
    yield PolicyOffer("fcfs", "lsv.scheduler.policy:Fcfs")
    yield PolicyOffer("priority", "lsv.scheduler.policy:Priority")
