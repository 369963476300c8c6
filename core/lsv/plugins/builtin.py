"""The core's own manifest: scheduling policies and parts of the engine, declared as every plugin declares them."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.hooks import hookimpl
from lsv.offers import PartOffer, PolicyOffer

api = 2


@hookimpl
def lsv_policies() -> Iterable[PolicyOffer]:
    yield PolicyOffer("fcfs", "lsv.scheduler.policy:Fcfs")
    yield PolicyOffer("priority", "lsv.scheduler.policy:Priority")


@hookimpl
def lsv_parts() -> Iterable[PartOffer]:
    yield PartOffer("lockstep", "lsv.engine.replicas.lockstep:make_lockstep")
    yield PartOffer("sleep", "lsv.engine.parts.sleep:make_sleep")
    yield PartOffer("adapter", "lsv.engine.parts.adapters:make_adapters")
    yield PartOffer("kv", "lsv.engine.parts.transfers:make_transfers")
    yield PartOffer("profiles", "lsv.engine.parts.profiles:make_profiles")
    yield PartOffer("experts", "lsv.engine.parts.experts:make_experts")
    yield PartOffer("grammar", "lsv.grammars.guide:make_guide")
    yield PartOffer("beams", "lsv.beams.rounds:make_beams")
