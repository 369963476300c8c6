"""A Ray cluster: joining it, and actors on machines that have room."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lsv.config import EngineConfig
from lsv.offers import PlatformOffer
from lsv.plugins.catalog import Catalog
from lsv.settings import own_environment
from lsv.settings.host_ip import read_host_ip
from lsv_base.errors import ConfigError, StartError

_NSIGHT = {"t": "cuda,nvtx,osrt,cudnn,cublas", "o": "'worker_%p'", "cuda-graph-trace": "node"}
"""Options of ``nsys profile``, as Ray wants them."""
_ON_DEMAND = {"capture-range": "cudaProfilerApi", "capture-range-end": "stop"}
"""Those with which /start_profile and /stop_profile begin and end what is recorded."""
_REACH_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
SHARE_OF_WAIT = 0.8
"""Of the time that all may take, how much may pass before there is room: who waits is to hear why there is none."""


class Placed(NamedTuple):
    """An actor that has been given a machine, and waits for what it is to do there."""

    actor: Any
    number: int
    """Of its room."""
    node: str
    """Ray's id of its machine."""
    address: str
    place: tuple[int, int]
    """As in ``lsv_runtime.worker.channel.Start``: its number among those that share a machine, and how many they are.
    """

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
        self.address: str = read_host_ip() or ray.util.get_node_ip_address()
        self._environment = _environment(config)
        self._group: PlacementGroup | None = None
        self._kind: Any = None
        self._bundle: Mapping[str, float] = {}
        self._nodes: dict[int, str] = {}
        """The machine of each actor."""
        self._lock = threading.Lock()
        """Held by whoever changes that: actors are replaced by threads."""
        self._actors: dict[int, Any] = {}

    def place(self, kind: Any, bundle: Mapping[str, float], count: int, seconds: float) -> list[Placed]:
        """Actors of a ``kind``, each with a ``bundle`` of Ray's resources: those of a machine one after another and
        this machine's first.

        Raises ``ConfigError`` where there is no room within ``seconds``, ``StartError`` where one does not start.
        """
        self._kind, self._bundle = kind, bundle
        self._group = placement_group([dict(bundle)] * count, strategy="PACK")
        if not self._group.wait(seconds):
            raise ConfigError(_explain_room(bundle, count), param="ray.address")
        self._actors = {number: self._make_actor(number) for number in range(count)}
        found = self._ask_where(self._actors)
        self._nodes = {number: node for number, (node, _, _) in found.items()}
        here = ray.get_runtime_context().get_node_id()
        order = sorted(found, key=lambda number: (found[number][0] != here, found[number][0], number))
        return [self._describe(number, *found[number]) for number in order]

    def place_again(self, placed: Placed) -> Placed:
        """Another actor in place of one that is lost, as soon as Ray has found room for it; it may take some time to
        see that a machine is gone. Raises ``StartError``.
        """
        number = placed.number
        with self._lock:
            del self._nodes[number]
        while True:
            ray.kill(self._actors[number])
            self._actors[number] = self._make_actor(number)
            try:
                where = self._ask_where({number: self._actors[number]})[number]
                break
            except StartError as error:
                if not isinstance(error.__cause__, ray.exceptions.RayActorError):
                    raise
                time.sleep(_AGAIN_SECONDS)
        with self._lock:
            self._nodes[number] = where[0]
            return self._describe(number, *where)

    def leave(self) -> None:
        """End the actors and give their room back."""
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors = {}
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        ray.shutdown()

    def _describe(self, number: int, node: str, address: str, devices: Sequence[str]) -> Placed:
        near = sorted(one for one, its in self._nodes.items() if its == node)
        # Ray shows an actor no devices but its own.
        place = (0, 1) if devices else (near.index(number), len(near))
        return Placed(self._actors[number], number, node, address, place)

    def _ask_where(self, actors: Mapping[int, Any]) -> dict[int, tuple[str, str, list[str]]]:
        try:
            return dict(zip(actors, ray.get([actor.where.remote() for actor in actors.values()]), strict=True))
        except ray.exceptions.RayError as cause:
            raise StartError(f"a worker could not be started on the Ray cluster: {cause}") from cause

    def _make_actor(self, number: int) -> Any:
        others = {name: count for name, count in self._bundle.items() if name not in ("CPU", "GPU")}
        return self._kind.options(
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle.get("GPU", 0),
            resources=others,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            runtime_env=self._environment,
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


def needs(config: EngineConfig, catalog: Catalog, ranks: int = 1) -> dict[str, float]:
    """What Ray is to reserve for ``ranks`` of a machine, by what it calls a device of the platform."""
    offered = "" if config.emulate else catalog.find(PlatformOffer, config.platform).resource
    device = str(config.options.get("ray.resource") or "") or offered
    cores = {"CPU": ranks * float(config.options.get("ray.cpus") or 0)}
    return {**cores, device: float(ranks)} if device else cores


def _explain_room(bundle: Mapping[str, float], count: int) -> str:
    wanted = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
    there = ", ".join(f"{count:g} {name}" for name, count in sorted(ray.cluster_resources().items()) if ":" not in name)
    return (
        f"the Ray cluster has no room for {count} workers of {wanted} each: it has {there}, part of it perhaps in use; "
        "add machines, or lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size"
    )
