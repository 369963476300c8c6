"""Which replicas a server has, and which of them are on this machine. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

from lsv.config import ReplicaNodes
from lsv.errors import ConfigError
from lsv.resolve.ranks.nodes import check_address, check_key, find_address, find_number
from lsv.settings import Settings


class Placement(NamedTuple):
    """The replicas of a server; ``local`` and ``base`` as in ``Topology``."""

    size: int
    local: tuple[int, int] | None = None
    base: int = 0
    nodes: ReplicaNodes | None = None
    """None where all are on this machine."""

    @property
    def here(self) -> int:
        """How many are on this machine."""
        return self.size if self.local is None else self.local[1]


def place_replicas(settings: Settings) -> Placement:
    """Raises ``ConfigError`` for options that do not go together.

    As with vLLM, a rank of its own makes a server one of several that something else spreads requests over, and so
    does the number of its first one, unless it is headless.
    """
    if settings["data_parallel_backend"] != "mp" and settings["data_parallel_size"] > 1:
        return _place_by(settings["data_parallel_backend"], settings)
    if divides_nodes(settings):
        return _place_by_node(settings)
    if settings["data_parallel_rank"] is not None or settings["data_parallel_external_lb"]:
        return _place_one(settings)
    headless = "headless" in settings and settings["headless"]
    if settings["data_parallel_hybrid_lb"] or (settings["data_parallel_start_rank"] and not headless):
        return _place_local(settings)
    count, local = settings["data_parallel_size"], settings["data_parallel_size_local"]
    if settings["nnodes"] > 1 or (local in (None, count) and (not headless or count == 1)):
        return Placement(count)
    here = _local(settings, headless=headless)
    return Placement(count, here, nodes=_find_node_0(settings, headless=headless))


_NOT_PLACED = {
    "nnodes": 1, "data_parallel_rank": None, "data_parallel_start_rank": None, "data_parallel_hybrid_lb": False,
    "data_parallel_external_lb": False, "headless": False,
}  # fmt: skip
"""Options that say where replicas are, and the values by which they do not."""


def _place_by(backend: str, settings: Settings) -> Placement:
    """Somebody finds machines for all replicas; how many are on this one is not to be said."""
    for name, plain in _NOT_PLACED.items():
        if settings.get(name, plain) != plain:
            raise ConfigError(
                f"{name} with data_parallel_backend={backend}: that finds the machines of all replicas; leave one of "
                "the two out",
                param=name,
            )
    if settings["executor"] not in ("auto", "inline", "processes"):
        raise ConfigError(
            f"executor {settings['executor']} with data_parallel_backend={backend}: a replica has its ranks on the "
            "machine that is found for it. For ranks on several, leave out --data-parallel-backend: engines are then "
            "on this machine",
            param="executor",
        )
    if settings["data_parallel_address"] is not None:
        check_address("data_parallel_address", settings["data_parallel_address"])
    nodes = ReplicaNodes(
        headless=False,
        address=settings["data_parallel_address"] or "",
        port=settings["data_parallel_rpc_port"],
        patience=settings["node_timeout"],
        placer=backend,
    )
    return Placement(settings["data_parallel_size"], (0, 0), nodes=nodes)


def divides_nodes(settings: Settings) -> bool:
    """Whether --nnodes counts the machines of all replicas, each of which has its ranks on one of them; otherwise those
    that the ranks of a single one are spread over.
    """
    several = settings["nnodes"] > 1 and settings["data_parallel_size"] > 1
    return several and settings["data_parallel_rank"] is None


def _place_by_node(settings: Settings) -> Placement:
    """Every machine of --nnodes has as many replicas, by their numbers, as with vLLM."""
    number, each = find_number(settings), _share(settings)
    for name, found in (("size_local", each), ("start_rank", number * each)):
        given = settings[f"data_parallel_{name}"]
        if given not in (None, found):
            raise ConfigError(
                f"data_parallel_{name}={given}: node_rank={number} of nnodes={settings['nnodes']} makes that {found}, "
                "as every machine has as many replicas; leave it out, or --nnodes where they have not",
                param=f"data_parallel_{name}",
            )
    if settings["data_parallel_external_lb"] or settings["data_parallel_hybrid_lb"]:
        _refuse_headless(settings, "nnodes with a load balancer before all machines")
        if settings["data_parallel_external_lb"] and each > 1:
            raise ConfigError(
                f"data_parallel_external_lb with {each} replicas on each machine: say by --data-parallel-rank which of "
                "them this server has, without --nnodes; or take --data-parallel-hybrid-lb",
                param="data_parallel_external_lb",
            )
        return Placement(each, base=number * each)
    if settings.get("headless") and number == 0:
        raise ConfigError("headless: node 0 serves; leave it out there", param="headless")
    nodes = _find_node_0(settings, headless=number > 0, each=each)
    return Placement(settings["data_parallel_size"], (number * each, each), nodes=nodes)


def _share(settings: Settings) -> int:
    """How many replicas each machine has."""
    count, nodes = settings["data_parallel_size"], settings["nnodes"]
    ranks = settings["tensor_parallel_size"] * settings["pipeline_parallel_size"]
    if count % nodes == 0:
        return int(count // nodes)
    if nodes % count == 0 and ranks % (nodes // count) == 0:
        raise ConfigError(
            f"nnodes={nodes} with data_parallel_size={count}: each replica would have its {ranks} ranks on "
            f"{nodes // count} machines. Ray finds machines for such replicas: --distributed-executor-backend ray, "
            f"without --nnodes. Or start a server for each, with --nnodes {nodes // count} and a --data-parallel-rank",
            param="nnodes",
        )
    raise ConfigError(
        f"nnodes={nodes} must divide data_parallel_size={count}: every machine has as many replicas, whole ones; where "
        "they have not, say by --data-parallel-size-local how many there are, without --nnodes",
        param="nnodes",
    )


def _place_one(settings: Settings) -> Placement:
    """A server with one of the replicas."""
    rank, count, local = (settings[f"data_parallel_{name}"] for name in ("rank", "size", "size_local"))
    if settings["nnodes"] == 1:
        _refuse_headless(settings, "data_parallel_external_lb")
    if rank is None:
        raise ConfigError(
            "data_parallel_external_lb: say by --data-parallel-rank which of the replicas this server has",
            param="data_parallel_rank",
        )
    if settings["data_parallel_hybrid_lb"] or settings["data_parallel_start_rank"]:
        raise ConfigError(
            f"data_parallel_rank={rank} is for a server with one replica; several on a machine are numbered by "
            "--data-parallel-start-rank: leave one of the two out",
            param="data_parallel_rank",
        )
    if rank >= count:
        raise ConfigError(
            f"data_parallel_rank={rank} must be less than data_parallel_size={count}: replicas are counted from 0",
            param="data_parallel_rank",
        )
    if local not in (None, 1):
        raise ConfigError(
            f"data_parallel_size_local={local} with data_parallel_rank={rank}: such a server has one replica; for more "
            "take --data-parallel-hybrid-lb",
            param="data_parallel_size_local",
        )
    return Placement(1, base=rank)


def _place_local(settings: Settings) -> Placement:
    """A server with the replicas of its machine."""
    _refuse_headless(settings, "data_parallel_hybrid_lb")
    if not settings["data_parallel_size_local"]:
        raise ConfigError(
            "data_parallel_hybrid_lb: say by --data-parallel-size-local how many replicas this machine has",
            param="data_parallel_size_local",
        )
    first, count = _local(settings, headless=False)
    return Placement(count, base=first)


def _refuse_headless(settings: Settings, name: str) -> None:
    if settings.get("headless"):
        raise ConfigError(f"{name}: every server serves the replicas that it has; leave out headless", param="headless")


def _local(settings: Settings, *, headless: bool) -> tuple[int, int]:
    """The first replica on this machine, and how many there are."""
    first, count, local = (settings[f"data_parallel_{name}"] for name in ("start_rank", "size", "size_local"))
    local = count if local is None else local
    if headless and first is None and local < count:
        raise ConfigError(
            f"headless with {local} of {count} replicas: say by --data-parallel-start-rank which is the first of them",
            param="data_parallel_start_rank",
        )
    if headless and local == 0:
        raise ConfigError(
            "data_parallel_size_local=0 and headless: this machine has nothing to do", param="data_parallel_size_local"
        )
    if (first or 0) + local > count:
        raise ConfigError(
            f"data_parallel_start_rank={first or 0} and data_parallel_size_local={local} are more than "
            f"data_parallel_size={count}, the replicas of all machines",
            param="data_parallel_size_local",
        )
    return first or 0, local


def _find_node_0(settings: Settings, *, headless: bool, each: int = 0) -> ReplicaNodes:
    address: str | None = settings["data_parallel_address"]
    if address is None and not each:
        raise ConfigError(
            f"{settings['data_parallel_size']} replicas on several machines need --data-parallel-address: that of the "
            "machine that serves, where the others join it",
            param="data_parallel_address",
        )
    if address is None:
        address = find_address(settings)
    check_address("data_parallel_address", address)
    check_key(settings["cluster_key"], "several machines")
    return ReplicaNodes(
        headless=headless,
        address=address,
        port=settings["data_parallel_rpc_port"],
        patience=settings["node_timeout"],
        each=each,
    )
