"""The core's own manifest: policies and executors, declared through the door every plugin uses."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.hooks import hookimpl
from lsv.offers import ExecutorOffer, PolicyOffer

api = 1


@hookimpl
def lsv_policies() -> Iterable[PolicyOffer]:
    yield PolicyOffer("fcfs", "lsv.scheduler.policy:Fcfs")
    yield PolicyOffer("priority", "lsv.scheduler.policy:Priority")


@hookimpl
def lsv_executors() -> Iterable[ExecutorOffer]:
    yield ExecutorOffer("inline", "lsv.worker.executor:InlineExecutor")
    yield ExecutorOffer("processes", "lsv.worker.processes:ProcessesExecutor")
    yield ExecutorOffer("nodes", "lsv.worker.nodes.executor:NodesExecutor", join="lsv.worker.nodes.member:serve_node")
