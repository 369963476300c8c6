"""The executor whose ranks are on the machines of a Ray cluster."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import ray

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.processes.nodes.door import Door, listen
from lsv_base.errors import EngineDied, StartError
from lsv_ray.actor import RankActor
from lsv_ray.cluster import SHARE_OF_WAIT, Cluster, Placed, needs
from lsv_runtime.devices.collectives import serve_store
from lsv_runtime.worker.channel import Start
from lsv_runtime.worker.processes import RankLink, RanksExecutor

log = logging.getLogger("lsv.ray")

_KEY = 32
"""Bytes by which the executor and its workers know each other."""
_CONNECT_SECONDS = 120.0


class RayRank(RankLink):
    """A worker that Ray has started."""

    def __init__(self, rank: int, end: socket.socket, placed: Placed) -> None:
        super().__init__(rank, end, str(placed))
        self._actor = placed.actor

    def abandon(self) -> None:
        ray.kill(self._actor)


class RayExecutor(RanksExecutor):
    """Ray finds room for the workers and starts them; plans and results go through sockets as between processes."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._catalog = catalog
        self._cluster: Cluster | None = None
        self._store: Any = None

    def launch(self, config: EngineConfig) -> Iterator[RankLink]:
        """Raises ``ConfigError`` without a cluster or room in it, ``StartError`` for workers that do not start."""
        cluster = self._cluster = Cluster(config)
        seconds = SHARE_OF_WAIT * config.load_timeout
        placed = cluster.place(RankActor, needs(config, self._catalog), config.topology.ranks, seconds)
        self._store, address = serve_store(cluster.address)
        for rank, (one, end) in enumerate(zip(placed, _connect(placed, cluster.address), strict=True)):
            log.info("rank %d is%s", rank, one)
            link = RayRank(rank, end, one)
            link.send(Start(config, rank, address, one.place))
            yield link

    def stop(self) -> None:
        super().stop()
        if self._cluster is not None:
            self._cluster.leave()
        self._cluster = self._store = None


def _connect(placed: list[Placed], host: str) -> list[socket.socket]:
    """The sockets of the actors, by rank, once each has connected and shown that it is one."""
    key, ends = secrets.token_bytes(_KEY), dict[int, socket.socket]()
    with closing(Door(listen(host, 0), key)) as door:
        runs = [one.actor.serve.remote(host, door.port, key, rank) for rank, one in enumerate(placed)]
        deadline = time.monotonic() + _CONNECT_SECONDS
        while len(ends) < len(placed):
            _raise_ended(runs, placed)
            if time.monotonic() > deadline:
                late = ", ".join(f"{rank}{one}" for rank, one in enumerate(placed) if rank not in ends)
                raise StartError(
                    f"no word from rank {late} after {_CONNECT_SECONDS:g} s: can it reach {host}, or does a firewall "
                    "keep it from that?"
                )
            guest = door.wait()
            if guest is not None and guest.purpose is not None:
                ends[guest.purpose] = guest.end
    return [ends[rank] for rank in range(len(placed))]


def _raise_ended(runs: list[Any], placed: list[Placed]) -> None:
    """Raises ``EngineDied`` for an actor that has ended before it connected."""
    ended, _ = ray.wait(runs, timeout=0)
    for run in ended:
        rank = runs.index(run)
        try:
            code = ray.get(run)
        except ray.exceptions.RayError as cause:
            raise EngineDied(f"the worker of rank {rank}{placed[rank]} did not start: {cause}") from cause
        raise EngineDied(f"the worker of rank {rank}{placed[rank]} ended with code {code} before it began")
