"""Which replicas a server has, and which of them are on this machine. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

from lsv.config import ReplicaNodes
from lsv.resolve.ranks.nodes import check_address, check_key, find_address, find_number
from lsv.settings import Settings
from lsv_base.errors import ConfigError


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
    if _counts_all_nodes(settings):
        return _place_whole(settings) if has_whole_replicas(settings) else _place_spread(settings)
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
    if settings["cluster_key"]:  # otherwise one is made
        check_key(settings["cluster_key"], "several machines")
    nodes = ReplicaNodes(
        headless=False,
        address=settings["data_parallel_address"] or "",
        port=settings["data_parallel_rpc_port"],
        patience=settings["node_timeout"],
        placer=backend,
    )
    return Placement(settings["data_parallel_size"], (0, 0), nodes=nodes)


def has_whole_replicas(settings: Settings) -> bool:
    """Whether each machine of --nnodes has all ranks of one replica or more; otherwise ranks are spread over them, if
    there are several.
    """
    return _counts_all_nodes(settings) and settings["data_parallel_size"] % settings["nnodes"] == 0


def _counts_all_nodes(settings: Settings) -> bool:
    """Whether --nnodes counts the machines of several replicas; otherwise those of a single one."""
    several = settings["nnodes"] > 1 and settings["data_parallel_size"] > 1
    return several and settings["data_parallel_rank"] is None


def _place_whole(settings: Settings) -> Placement:
    """Every machine of --nnodes has as many replicas, by their numbers, as with vLLM."""
    number, each = find_number(settings), settings["data_parallel_size"] // settings["nnodes"]
    _check_share(settings, number, first=number * each, local=each)
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


def _place_spread(settings: Settings) -> Placement:
    """Every replica has its ranks on as many machines of --nnodes, and its engine on node 0."""
    number, size = find_number(settings), _divide_nodes(settings)
    _check_share(settings, number, first=number // size, local=1)
    for name in ("data_parallel_external_lb", "data_parallel_hybrid_lb"):
        if settings[name]:
            raise ConfigError(
                f"{name} with nnodes={settings['nnodes']}: each replica is on {size} machines, none of which serves it "
                f"alone. Start a server for each, with --nnodes {size} and a --data-parallel-rank",
                param=name,
            )
    return Placement(settings["data_parallel_size"])


def _divide_nodes(settings: Settings) -> int:
    """How many machines each replica has. Raises ``ConfigError`` where they have not all as many ranks."""
    count, nodes = settings["data_parallel_size"], settings["nnodes"]
    tensor, stages = settings["tensor_parallel_size"], settings["pipeline_parallel_size"]
    if nodes % count:
        raise ConfigError(
            f"nnodes={nodes} and data_parallel_size={count}: one must divide the other, as every machine has as many "
            "replicas, whole ones, or every replica as many machines; where they have not, say by "
            "--data-parallel-size-local how many there are, without --nnodes",
            param="nnodes",
        )
    if tensor * stages % (nodes // count):
        raise ConfigError(
            f"nnodes={nodes} with data_parallel_size={count}: each replica would have {nodes // count} machines, which "
            f"must divide its {tensor * stages} ranks (tensor_parallel_size={tensor} x "
            f"pipeline_parallel_size={stages}): every machine has as many",
            param="nnodes",
        )
    return int(nodes // count)


def _check_share(settings: Settings, number: int, *, first: int, local: int) -> None:
    """Raises ``ConfigError`` where something else is said of the replicas of a machine."""
    for name, found in (("size_local", local), ("start_rank", first)):
        given = settings[f"data_parallel_{name}"]
        if given not in (None, found):
            raise ConfigError(
                f"data_parallel_{name}={given}: node_rank={number} of nnodes={settings['nnodes']} makes that {found}; "
                "leave it out, or --nnodes where machines have not all as many",
                param=f"data_parallel_{name}",
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
            f"data_parallel_rank={rank} requires a server with one replica, --data-parallel-start-rank one "
            "with several: leave one of the two out",
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
            f"{settings['data_parallel_size']} replicas on several machines need --data-parallel-address, the "
            "address of the machine that serves",
            param="data_parallel_address",
        )
    address = find_address(settings, address)
    check_key(settings["cluster_key"], "several machines")
    return ReplicaNodes(
        headless=headless,
        address=address,
        port=settings["data_parallel_rpc_port"],
        patience=settings["node_timeout"],
        each=each,
    )
