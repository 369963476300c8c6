"""The machines of --nnodes: which one this is, where the first is, and those that engines' ranks are spread over.
Imports no torch.
"""

from __future__ import annotations

from lsv.config import Nodes, Topology
from lsv.settings import Settings
from lsv.settings.launchers import given_or_launched
from lsv_base.errors import ConfigError

_PORT = 29501
_LAST_PORT = 65535
_SHORTEST_KEY = 16
_EVERYWHERE = frozenset({"", "*", "0.0.0.0", "::"})


def choose_nodes(settings: Settings, topology: Topology) -> Nodes | None:
    """None for one machine, whatever a launcher's variables say. Raises ``ConfigError`` for what can't be."""
    count: int = settings["nnodes"]
    headless = "headless" in settings and settings["headless"]
    if count == 1:
        if settings["node_rank"]:
            raise ConfigError(
                f"node_rank={settings['node_rank']} is one of several machines: say how many there are by --nnodes",
                param="node_rank",
            )
        if headless and topology.local is None:
            raise ConfigError(
                "headless: there is one machine, and it serves; see --nnodes and --data-parallel-size-local",
                param="headless",
            )
        return None
    number = find_number(settings)
    if headless and number == 0:
        raise ConfigError("headless: node 0 serves; leave it out there", param="headless")
    if topology.data == 1 and topology.ranks % count:
        raise ConfigError(
            f"nnodes={count} must divide the {topology.ranks} ranks of tensor_parallel_size={topology.tensor} and "
            f"pipeline_parallel_size={topology.pipeline}: every machine has as many",
            param="nnodes",
        )
    check_key(settings["cluster_key"], "several machines")
    return Nodes(
        count=count,
        number=number,
        address=find_address(settings, settings["data_parallel_address"] if topology.data > 1 else None),
        port=_find_port(settings, topology.data),
        patience=settings["node_timeout"],
    )


def _find_port(settings: Settings, engines: int) -> int:
    """The first of as many as there are engines. Raises ``ConfigError`` where there are not as many behind it."""
    found = given_or_launched(settings, "master_port")
    if found is None:
        return _PORT
    if found.value + engines - 1 > _LAST_PORT:
        raise ConfigError(
            f"{found.source}: master_port={found.value} is the first of {engines} ports, one for the machines of each "
            f"of data_parallel_size={engines}: {_LAST_PORT + 1 - engines} at most",
            param="master_port",
        )
    return int(found.value)


def find_number(settings: Settings) -> int:
    """Which of --nnodes this machine is. Raises ``ConfigError`` where nobody says it, and for one that there is not."""
    found, count = given_or_launched(settings, "node_rank"), settings["nnodes"]
    if found is None:
        raise ConfigError(
            f"nnodes={count} needs --node-rank (or NODE_RANK, GROUP_RANK, SLURM_NODEID): which of them this machine "
            "is, from 0",
            param="node_rank",
        )
    if found.value >= count:
        raise ConfigError(
            f"{found.source}: node_rank={found.value} must be less than nnodes={count}: machines are counted from 0",
            param="node_rank",
        )
    return int(found.value)


def find_address(settings: Settings, said: str | None = None) -> str:
    """That of node 0, ``said`` by an option of replicas or else by those of machines. Raises ``ConfigError`` where
    nobody says it.
    """
    if said is not None:
        check_address("data_parallel_address", said)
        return said
    found = given_or_launched(settings, "master_addr")
    if found is None:
        raise ConfigError(
            f"nnodes={settings['nnodes']} needs --master-addr (or MASTER_ADDR): the address of node 0, where the "
            "others join it",
            param="master_addr",
        )
    check_address("master_addr", found.value)
    return str(found.value)


def check_address(name: str, address: str) -> None:
    """Raises ``ConfigError`` for one that stands for all interfaces of a machine."""
    if address.strip("[]") in _EVERYWHERE:
        raise ConfigError(f"{name}={address!r}: give the one address that others reach it by", param=name)


def check_key(key: str | None, who: str) -> None:
    """Raises ``ConfigError`` where there is no secret that ``who``, "several machines", can know each other by."""
    if not key:
        raise ConfigError(
            f"{who} need a secret that they know each other by: set the variable LSV_CLUSTER_KEY to the same on all of "
            "them, as from openssl rand -hex 32",
            param="cluster_key",
        )
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"cluster_key has {len(key)} characters: {_SHORTEST_KEY} or more keep it from being guessed",
            param="cluster_key",
        )
