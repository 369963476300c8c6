"""A Ray cluster: joining it, and an actor for each rank on machines that have room."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lsv.config import EngineConfig
from lsv.errors import ConfigError, StartError
from lsv.settings import own_environment
from lsv_ray.actor import RankActor

_NSIGHT = {"t": "cuda,nvtx,osrt,cudnn,cublas", "o": "'worker_%p'", "cuda-graph-trace": "node"}
"""Options of ``nsys profile``, as Ray wants them."""
_ON_DEMAND = {"capture-range": "cudaProfilerApi", "capture-range-end": "stop"}
"""Those with which /start_profile and /stop_profile begin and end what is recorded."""
_REACH_SECONDS = 10.0
_SHARE_OF_WAIT = 0.8
"""Of the load timeout, how much may pass before there is room: who supervises the engine is to hear why it ends."""


class Placed(NamedTuple):
    """An actor that waits to become the worker of a rank."""

    actor: Any
    node: str
    """Ray's id of its machine."""
    address: str
    place: tuple[int, int]
    """As in ``lsv.worker.channel.Start``."""

    def __str__(self) -> str:
        return f" on Ray node {self.address} ({self.node[:8]})"


class Cluster:
    """This process as a driver of a Ray cluster, and the room it has taken there."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ``ConfigError`` where there is no cluster at the address."""
        address = str(config.options.get("ray.address") or "") or None
        try:
            _check_reachable(address)
            ray.init(address=address, configure_logging=False, include_dashboard=None if address else False)
        except (OSError, ValueError) as cause:
            raise ConfigError(f"ray.address={address}: {cause}", param="ray.address") from cause
        self.address: str = ray.util.get_node_ip_address()
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []

    def place(self, config: EngineConfig, device: str) -> list[Placed]:
        """An actor for each rank, those of a machine one after another and this machine's first. ``device`` is what Ray
        calls one of the platform's (``PlatformOffer.resource``).

        Raises ``ConfigError`` where the cluster has no room for them, ``StartError`` where one does not start.
        """
        bundle = _needs(config, device)
        self._group = placement_group([bundle] * config.topology.ranks, strategy="PACK")
        if not self._group.wait(_SHARE_OF_WAIT * config.load_timeout):
            raise ConfigError(_explain_room(bundle, config), param="ray.address")
        environment = _environment(config)
        self._actors = [self._make_actor(bundle, number, environment) for number in range(config.topology.ranks)]
        try:
            found = ray.get([actor.where.remote() for actor in self._actors])
        except ray.exceptions.RayError as cause:
            raise StartError(f"a worker could not be started on the Ray cluster: {cause}") from cause
        here = ray.get_runtime_context().get_node_id()
        order = sorted(range(len(found)), key=lambda number: (found[number][0] != here, found[number][0], number))
        sizes, seen, placed = Counter(node for node, _, _ in found), Counter[str](), []
        for number in order:
            node, address, devices = found[number]
            # Ray shows an actor no devices but its own.
            place = (0, 1) if devices else (seen[node], sizes[node])
            seen[node] += 1
            placed.append(Placed(self._actors[number], node, address, place))
        return placed

    def leave(self) -> None:
        """End the actors and give their room back."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        ray.shutdown()

    def _make_actor(self, bundle: Mapping[str, float], number: int, environment: Mapping[str, Any]) -> Any:
        others = {name: count for name, count in bundle.items() if name not in ("CPU", "GPU")}
        return RankActor.options(  # type: ignore[attr-defined]
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            resources=others,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            runtime_env=environment,
        ).remote()


def _environment(config: EngineConfig) -> dict[str, Any]:
    """What Ray is to start a worker with."""
    environment: dict[str, Any] = {"env_vars": own_environment()}
    if config.options.get("ray.nsight"):
        on_demand = config.profiling is not None and config.profiling.kind == "device"
        environment["nsight"] = {**_NSIGHT, **(_ON_DEMAND if on_demand else {})}
    return environment


def _check_reachable(address: str | None) -> None:
    """Raises ``OSError`` where nobody listens: Ray itself asks for minutes."""
    if address is None or "://" in address or ":" not in address:
        return
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _REACH_SECONDS).close()


def _needs(config: EngineConfig, device: str) -> dict[str, float]:
    """What Ray is to reserve for a rank."""
    device = str(config.options.get("ray.resource") or "") or ("" if config.emulate else device)
    needs = {"CPU": float(config.options.get("ray.cpus") or 0)}
    return {**needs, device: 1.0} if device else needs


def _explain_room(bundle: Mapping[str, float], config: EngineConfig) -> str:
    wanted = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
    there = ", ".join(f"{count:g} {name}" for name, count in sorted(ray.cluster_resources().items()) if ":" not in name)
    return (
        f"the Ray cluster has no room for {config.topology.ranks} workers of {wanted} each: it has {there}, part of it "
        "perhaps in use; add machines, or lower tensor_parallel_size or pipeline_parallel_size"
    )
