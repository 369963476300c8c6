"""The manifest of the runtime: what runs workers, their parts, and a command that writes a checkpoint cut for ranks."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.hooks import hookimpl
from lsv.offers import CommandOffer, ExecutorOffer, PartOffer

api = 2


@hookimpl
def lsv_executors() -> Iterable[ExecutorOffer]:
    yield ExecutorOffer("inline", "lsv_runtime.worker.executor:InlineExecutor")
    yield ExecutorOffer("processes", "lsv_runtime.worker.processes:ProcessesExecutor")
    yield ExecutorOffer(
        "nodes", "lsv_runtime.worker.nodes.executor:NodesExecutor", join="lsv_runtime.worker.nodes.member:serve_node"
    )


@hookimpl
def lsv_parts() -> Iterable[PartOffer]:
    yield PartOffer("adapter", worker="lsv_runtime.worker.parts.adapters:make_adapters")
    yield PartOffer("profiles", worker="lsv_runtime.worker.parts.profiles:make_profiles")
    yield PartOffer("experts", worker="lsv_runtime.worker.parts.experts:make_experts")


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("save-sharded-state", "lsv_runtime.save:run", "write a checkpoint cut for tensor parallelism")
