"""Replicas on the machines of a Ray cluster: room for each on one of them, and an actor that runs its engine there."""

from __future__ import annotations

import ray

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_base.errors import EngineDied
from lsv_ray.actor import ReplicaActor
from lsv_ray.cluster import SHARE_OF_WAIT, Cluster, Placed, needs


class RayPlace:
    """The room of a replica, wherever Ray has it."""

    def __init__(self, cluster: Cluster, placed: Placed) -> None:
        self._cluster, self._placed = cluster, placed

    def __str__(self) -> str:
        return str(self._placed)

    @property
    def share(self) -> tuple[int, int]:
        return self._placed.place

    def serve(self, charge: bytes) -> bytes:
        """Raises ``EngineDied`` when the actor is gone, with its machine or alone."""
        try:
            return bytes(ray.get(self._placed.actor.serve.remote(charge)))
        except ray.exceptions.RayError as cause:
            raise EngineDied(f"the actor{self._placed} is gone: {' '.join(str(cause).split())}") from cause

    def move(self) -> None:
        """Ray moves the room itself when its machine is lost."""
        self._placed = self._cluster.place_again(self._placed)


class RayPlacer:
    """Ray reserves room for the ranks of a replica as a whole, so that they share a machine."""

    def __init__(self, config: EngineConfig, catalog: Catalog) -> None:
        self._config, self._catalog = config, catalog
        self._cluster: Cluster | None = None

    def join(self) -> str:
        """Raises ``ConfigError`` where there is no cluster."""
        self._cluster = Cluster(self._config)
        return self._cluster.address

    def find(self) -> list[RayPlace]:
        """Raises ``ConfigError`` where the cluster has no room for all replicas, ``StartError``."""
        cluster, nodes, topology = self._cluster, self._config.replica_nodes, self._config.topology
        assert cluster is not None, "the cluster is joined first"
        assert nodes is not None, "replicas on several machines"
        bundle = needs(self._config, self._catalog, topology.ranks)
        placed = cluster.place(ReplicaActor, bundle, topology.data, SHARE_OF_WAIT * nodes.patience)
        return [RayPlace(cluster, one) for one in placed]

    def leave(self) -> None:
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None
