"""How many ranks an engine has, and what runs them. Imports no torch."""

from __future__ import annotations

from typing import Any

import msgspec

from lsv.config import Choices, EngineConfig, Topology
from lsv.offers import ExecutorOffer, KernelOffer, PlacerOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.experts.options import choose_experts
from lsv.resolve.ranks.nodes import choose_nodes
from lsv.resolve.ranks.replicas import Placement, has_whole_replicas, place_replicas
from lsv.settings import Settings
from lsv.settings.host_ip import check_host_ip
from lsv_base.errors import ConfigError


def choose_ranks(settings: Settings, platform: str, catalog: Catalog, choices: Choices) -> dict[str, Any]:
    """The fields of an ``EngineConfig`` that say how many ranks there are, where, and what runs them."""
    if settings["data_parallel_backend"] != "mp":
        catalog.find(PlacerOffer, settings["data_parallel_backend"])
    placement = place_replicas(settings)
    topology = choose_topology(settings, placement)
    topology = _fit_experts(topology, platform, catalog, choices)
    nodes = None if has_whole_replicas(settings) else choose_nodes(settings, topology)
    if nodes is not None:
        topology = topology.of_replica(nodes.replica(topology))
    executor = choose_executor(settings["executor"], topology, catalog, spread=nodes is not None)
    if settings["host_ip"] and (nodes or placement.nodes or executor not in ("inline", "processes")):
        check_host_ip(settings["host_ip"])
    experts = choose_experts(settings, topology, choices)
    return {
        "topology": topology, "experts": experts, "executor": executor,
        "nodes": nodes, "replica_nodes": placement.nodes,
    }  # fmt: skip


def choose_topology(settings: Settings, placement: Placement) -> Topology:
    """Raises ``ConfigError`` for a partition of the layers that is none."""
    stages, partition = settings["pipeline_parallel_size"], settings["pipeline_layer_partition"]
    layers: tuple[int, ...] = ()
    if partition:
        try:
            layers = tuple(int(count) for count in partition.split(","))
        except ValueError:
            layers = ()
        if len(layers) != stages or min(layers) < 1:
            raise ConfigError(
                f"pipeline_layer_partition={partition} must say how many layers each of {stages} stages "
                "(pipeline_parallel_size) has, one or more: numbers with commas between them",
                param="pipeline_layer_partition",
            )
    tensor = settings["tensor_parallel_size"]
    return Topology(
        tensor=tensor, pipeline=stages, data=placement.size, local=placement.local, base=placement.base,
        expert=_choose_spread(settings, placement), layers=layers,
    )  # fmt: skip


def _choose_spread(settings: Settings, placement: Placement) -> int:
    """Over how many ranks the experts of a layer are spread: those of all replicas."""
    if not settings["enable_expert_parallel"]:
        return 1
    if placement.size != settings["data_parallel_size"]:
        raise ConfigError(
            f"enable_expert_parallel with data_parallel_size={settings['data_parallel_size']} as servers of their own: "
            "replicas share experts where one server has all of them; leave one of the two out",
            param="enable_expert_parallel",
        )
    if settings["load_format"] == "sharded_state":
        raise ConfigError(
            "enable_expert_parallel: checkpoints of sharded_state have a part of every expert for each rank; load the "
            "one that they were made of",
            param="enable_expert_parallel",
        )
    return int(settings["tensor_parallel_size"]) * placement.size


def _fit_experts(topology: Topology, platform: str, catalog: Catalog, choices: Choices) -> Topology:
    """Over as many ranks as spread experts can be and still be computed as cut ones are: by a kernel or by none."""
    ops = {offer.op for offer in catalog.offers(KernelOffer) if offer.platform in (platform, "*")}
    within, name = topology.tensor if "moe.spread" in ops else 1, "enable_expert_parallel"
    if topology.expert == 1 or "moe" not in ops:
        return topology
    if not topology.shares_experts and within == 1:
        why = f"platform {platform} has kernels for experts that are cut and none for whole ones: answers are the same"
        choices.note(name, False, why)
    elif topology.shares_experts and "moe.exchanged" not in ops:
        why = f"platform {platform} has no kernels for experts that replicas share: answers are the same"
        held = "has them whole, spread over its ranks" if within > 1 else "holds all experts"
        choices.note(name, within > 1, f"{why}, and each replica {held}")
    else:
        return topology
    return msgspec.structs.replace(topology, expert=within)


def choose_executor(asked: str, topology: Topology, catalog: Catalog, *, spread: bool = False) -> str:
    """The one asked for; else inline for one device, and one that runs processes for ranks, here or ``spread`` over
    machines.
    """
    if spread:
        if asked not in ("auto", "processes", "nodes"):
            raise ConfigError(
                f"executor {asked} knows nothing of --nnodes: leave either out (a Ray cluster finds machines itself)",
                param="executor",
            )
        return "nodes"
    if asked == "nodes":
        raise ConfigError("executor nodes requires several machines: set their number with --nnodes", param="executor")
    if asked == "external_launcher":
        if topology.ranks > 1:
            raise ConfigError(
                "executor external_launcher: ranks started by another launcher can't share a model here; set "
                "tensor_parallel_size to 1 in each of them, or leave the option out",
                param="executor",
            )
        return "inline"
    if asked == "inline" and topology.ranks > 1:
        raise ConfigError("executor inline runs one device: several need executor processes", param="executor")
    if asked != "auto":
        return catalog.find(ExecutorOffer, asked).name
    if topology.ranks == 1:
        return "inline"
    if not any(offer.name == "processes" for offer in catalog.offers(ExecutorOffer)):
        raise ConfigError("tensor_parallel_size > 1 is not available yet: use 1", param="tensor_parallel_size")
    return "processes"


def refuse_with_stages(config: EngineConfig) -> None:
    """Raises ``ConfigError`` for what a model whose layers are spread over stages does not do."""
    if config.topology.pipeline == 1:
        return
    refused = {
        "models without a KV cache": not config.cached,
        "load_format=sharded_state": config.load_format == "sharded_state",
    }
    for what, asked in refused.items():
        if asked:
            raise ConfigError(
                f"{what}: not with pipeline_parallel_size={config.topology.pipeline}; spread the model by "
                "--tensor-parallel-size instead",
                param="pipeline_parallel_size",
            )
