"""Which replicas a server has, and where the others are: as vLLM's options say it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from lsv import LLM
from lsv.config import EngineConfig, ReplicaNodes
from lsv.processes.nodes.newcomer import differences
from lsv.resolve import resolve
from lsv.resolve.ranks.replicas import Placement, place_replicas
from lsv.settings import Declared, Given, gather
from lsv.settings.hardware import HARDWARE
from lsv.settings.serving import SERVE
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments

KEY = "a secret of two machines"
FOUR: dict[str, Any] = {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1"}
PORT = {"data_parallel_rpc_port": 13345}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


def place(**given: Any) -> Placement:
    """By the options of a server."""
    declared = Declared((*HARDWARE, *SERVE))
    return place_replicas(gather(declared, {name: Given(value, "a test") for name, value in given.items()}))


def nodes(*, headless: bool, port: int = 13345, each: int = 0) -> ReplicaNodes:
    return ReplicaNodes(headless=headless, address="10.0.0.1", port=port, patience=600.0, each=each)


@pytest.mark.row("F-281", "F-569")
def test_one_machine_serves_and_the_others_have_replicas() -> None:
    assert place(**FOUR, **PORT) == Placement(4, (0, 2), nodes=nodes(headless=False))
    second = place(**FOUR, **PORT, data_parallel_start_rank=2, headless=True)
    assert second == Placement(4, (2, 2), nodes=nodes(headless=True))
    assert place(**FOUR).nodes == nodes(headless=False, port=29550), "vLLM's port"


def test_the_machine_that_serves_may_have_none() -> None:
    head = {**FOUR, "data_parallel_size_local": 0}
    assert place(**head, **PORT) == Placement(4, (0, 0), nodes=nodes(headless=False))
    other = {**FOUR, "data_parallel_size_local": 4, "headless": True}
    assert place(**other, **PORT) == Placement(4, (0, 4), nodes=nodes(headless=True))


def test_without_a_word_all_are_on_this_machine() -> None:
    assert place() == Placement(1)
    assert place(data_parallel_size=4) == place(data_parallel_size=4, data_parallel_size_local=4) == Placement(4)


TWO: dict[str, Any] = {"data_parallel_size": 4, "nnodes": 2, "master_addr": "10.0.0.1"}


@pytest.mark.row("F-281", "F-569")
def test_machines_of_a_number_share_the_replicas_evenly() -> None:
    """By the number alone, as with vLLM: node 0 serves, ``headless`` is understood elsewhere."""
    assert place(**TWO, node_rank=0) == Placement(4, (0, 2), nodes=nodes(headless=False, port=29550, each=2))
    second = Placement(4, (2, 2), nodes=nodes(headless=True, port=29550, each=2))
    assert place(**TWO, node_rank=1) == place(**TWO, node_rank=1, headless=True) == second
    said = {"data_parallel_size_local": 2, "data_parallel_start_rank": 2, "data_parallel_address": "10.0.0.1"}
    assert place(**{**TWO, "master_addr": "10.0.0.9", **said}, node_rank=1) == second


def test_launchers_number_the_machines_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_NODEID": "1", "MASTER_ADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    assert place(data_parallel_size=4, nnodes=2).local == (2, 2)
    assert place(data_parallel_size=4) == Placement(4), "variables alone change nothing"


def test_their_ranks_are_processes_of_their_machine() -> None:
    settings, loaded = read_arguments({"model": "lsv-demo", **TWO, "tensor_parallel_size": 2, "node_rank": 1})
    config = resolve(settings, loaded)
    assert (config.executor, config.nodes, config.topology.devices) == ("processes", None, 4)
    assert config.replica_nodes == nodes(headless=True, port=29550, each=2)


def test_machines_of_a_number_behind_a_load_balancer() -> None:
    assert place(**TWO, node_rank=1, data_parallel_hybrid_lb=True) == Placement(2, base=2)
    four = {**TWO, "nnodes": 4}
    assert place(**four, node_rank=3, data_parallel_external_lb=True) == Placement(1, base=3)


def test_the_ranks_of_a_server_of_one_replica_may_be_on_several_machines() -> None:
    one = {"model": "lsv-demo", **TWO, "data_parallel_rank": 3, "tensor_parallel_size": 2, "node_rank": 1}
    settings, loaded = read_arguments(one)
    config = resolve(settings, loaded)
    assert (config.topology.base, config.executor, config.replica_nodes) == (3, "nodes", None)
    assert config.nodes is not None
    assert (config.nodes.count, config.nodes.number) == (2, 1)


SPREAD: dict[str, Any] = {
    "data_parallel_size": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 4,
    "master_addr": "10.0.0.1",
}  # fmt: skip


def spread(**given: Any) -> EngineConfig:
    settings, loaded = read_arguments({"model": "lsv-demo", **SPREAD, **given})
    return resolve(settings, loaded)


@pytest.mark.row("F-281", "F-569", "F-571")
def test_the_ranks_of_replicas_may_be_on_several_machines() -> None:
    """Counted replica by replica; all engines are on node 0, and each has a port of its own."""
    found = [spread(node_rank=number) for number in range(4)]
    assert [(one.executor, one.replica_nodes, one.devices) for one in found] == [("nodes", None, 2)] * 4
    assert [one.topology.replica for one in found] == [0, 0, 1, 1]
    assert {one.fingerprint() for one in found[0].replicas()} == {found[0].fingerprint()}
    assert differences(found[0], found[3]) == []
    for replica, config in enumerate(found[0].replicas()):
        nodes, topology = config.nodes, config.topology
        assert nodes is not None
        assert nodes.of_replica(topology) == range(2 * replica, 2 * replica + 2)
        assert [nodes.ranks(topology, number) for number in nodes.of_replica(topology)] == [range(2), range(2, 4)]
        assert nodes.port_of(topology) == 29501 + replica
    assert spread(node_rank=2, data_parallel_start_rank=1, data_parallel_size_local=1).topology == found[2].topology
    assert spread(node_rank=0, nnodes=8).devices == 1
    own = spread(node_rank=0, data_parallel_address="10.0.0.9").nodes
    assert own is not None
    assert own.address == "10.0.0.9", "which goes before --master-addr with replicas"


@pytest.mark.parametrize(
    ("replica", "place", "way", "shares"),
    [
        (nodes(headless=False), "--headless and --data-parallel-start-rank 2", "--data-parallel-address", "size-local"),
        (nodes(headless=False, each=2), "--node-rank 1", "--master-addr", "--nnodes and --node-rank"),
    ],
)
def test_machines_are_told_of_by_the_options_they_were_given(
    replica: ReplicaNodes, place: str, way: str, shares: str
) -> None:
    assert replica.place(2) == place
    assert replica.way == f"{way} and --data-parallel-rpc-port"
    assert replica.shares.endswith(shares)


@pytest.mark.parametrize("hybrid", [{"data_parallel_hybrid_lb": True}, {}])
def test_a_machine_that_serves_its_own_is_a_server_of_these(hybrid: dict[str, Any]) -> None:
    """vLLM takes that from the number of the first one, too."""
    assert place(**FOUR, **hybrid, data_parallel_start_rank=2) == Placement(2, base=2)


@pytest.mark.parametrize("external", [{"data_parallel_external_lb": True}, {}])
def test_a_server_of_one_replica_has_its_number(external: dict[str, Any]) -> None:
    assert place(data_parallel_size=4, data_parallel_rank=3, **external) == Placement(1, base=3)


def test_their_metrics_have_the_number_among_all() -> None:
    settings, loaded = read_arguments({"model": "lsv-demo", **FOUR, "data_parallel_start_rank": 2})
    config = resolve(settings, loaded)
    assert [one.topology.number for one in config.replicas()] == [2, 3]
    assert config.topology.devices == 2
    assert config.replica_nodes is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, "need --data-parallel-address"),
        ({**FOUR, "data_parallel_address": "0.0.0.0"}, "give the one address that others reach it by"),
        ({**FOUR, "cluster_key": "short"}, "has 5 characters"),
        ({**FOUR, "headless": True}, "headless with 2 of 4 replicas: say by --data-parallel-start-rank"),
        ({**FOUR, "headless": True, "data_parallel_start_rank": 3}, "are more than data_parallel_size=4"),
        ({**FOUR, "headless": True, "data_parallel_start_rank": 1, "data_parallel_size_local": 0}, "nothing to do"),
        ({**FOUR, "data_parallel_size_local": 5}, "are more than data_parallel_size=4"),
        ({**FOUR, "data_parallel_hybrid_lb": True, "headless": True}, "every server serves the replicas that it has"),
        ({"data_parallel_size": 4, "data_parallel_hybrid_lb": True}, "say by --data-parallel-size-local how many"),
        ({"data_parallel_size": 4, "data_parallel_external_lb": True}, "say by --data-parallel-rank which"),
        ({"data_parallel_size": 4, "data_parallel_rank": 4}, "must be less than data_parallel_size=4"),
        ({**FOUR, "data_parallel_rank": 1}, "such a server has one replica"),
        ({**FOUR, "data_parallel_rank": 1, "data_parallel_start_rank": 1}, "leave one of the two out"),
        ({"data_parallel_rank": 1, "headless": True}, "every server serves the replicas that it has"),
        (TWO, "needs --node-rank"),
        ({**TWO, "node_rank": 2}, "must be less than nnodes=2"),
        ({**TWO, "node_rank": 0, "headless": True}, "node 0 serves; leave it out there"),
        ({**TWO, "node_rank": 0, "master_addr": None}, "needs --master-addr"),
        ({**TWO, "node_rank": 0, "master_addr": "*"}, "give the one address that others reach it by"),
        ({**TWO, "node_rank": 0, "cluster_key": "short"}, "has 5 characters"),
        ({**TWO, "node_rank": 1, "data_parallel_size_local": 3}, "=3: node_rank=1 of nnodes=2 makes that 2"),
        ({**TWO, "node_rank": 1, "data_parallel_start_rank": 1}, "=1: node_rank=1 of nnodes=2 makes that 2"),
        ({**TWO, "node_rank": 0, "nnodes": 3}, "nnodes=3 and data_parallel_size=4: one must divide the other"),
        (
            {**TWO, "node_rank": 0, "nnodes": 8},
            r"each replica would have 2 machines, which must divide its 1 ranks \(tensor_parallel_size=1 x pipeline_",
        ),
        ({**SPREAD, "node_rank": 2, "data_parallel_start_rank": 2}, "=2: node_rank=2 of nnodes=4 makes that 1"),
        ({**SPREAD, "node_rank": 2, "data_parallel_size_local": 2}, "=2: node_rank=2 of nnodes=4 makes that 1"),
        (
            {**SPREAD, "node_rank": 0, "data_parallel_hybrid_lb": True},
            "Start a server for each, with --nnodes 2 and a --data-parallel-rank",
        ),
        (
            {**SPREAD, "node_rank": 0, "data_parallel_external_lb": True},
            "external_lb with nnodes=4: each replica is on",
        ),
        ({**TWO, "node_rank": 1, "data_parallel_external_lb": True}, "external_lb with 2 replicas on each machine"),
        ({**TWO, "node_rank": 1, "data_parallel_hybrid_lb": True, "headless": True}, "every server serves"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"master_port": 65535}, "master_port=65535 is the first of 2 ports, .*: 65534 at most"),
        ({"data_parallel_address": "0.0.0.0"}, "give the one address that others reach it by"),
        ({"executor": "ray"}, "executor ray knows nothing of --nnodes"),
        ({"cluster_key": "short"}, "has 5 characters"),
    ],
)
def test_what_machines_of_larger_replicas_can_not_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spread(node_rank=0, **given)


def test_a_secret_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSV_CLUSTER_KEY")
    with pytest.raises(ConfigError, match="set the variable LSV_CLUSTER_KEY to the same"):
        place(**FOUR)


def test_an_engine_in_this_process_is_on_this_machine() -> None:
    with pytest.raises(ConfigError, match="data_parallel_size: LLM runs one engine"):
        LLM("lsv-demo", **FOUR)


PLACED: dict[str, Any] = {"data_parallel_size": 4, "data_parallel_backend": "ray"}


@pytest.mark.row("F-281", "F-569")
def test_somebody_finds_machines_for_all_replicas() -> None:
    """Whatever is said of how many are here, as on vLLM's lines; nobody has to know a key."""
    found = ReplicaNodes(headless=False, address="", port=29550, patience=600.0, placer="ray")
    assert place(**PLACED) == place(**PLACED, data_parallel_size_local=2) == Placement(4, (0, 0), nodes=found)
    there = place(**PLACED, data_parallel_address="10.0.0.1", data_parallel_rpc_port=13345)
    assert there.nodes == structs.replace(found, address="10.0.0.1", port=13345)
    assert place(data_parallel_backend="ray") == Placement(1), "there is nothing to place"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nnodes": 2}, "nnodes with data_parallel_backend=ray: that finds the machines of all replicas"),
        ({"data_parallel_rank": 1}, "data_parallel_rank with"),
        ({"data_parallel_start_rank": 2}, "data_parallel_start_rank with"),
        ({"data_parallel_hybrid_lb": True}, "data_parallel_hybrid_lb with"),
        ({"data_parallel_external_lb": True}, "data_parallel_external_lb with"),
        ({"headless": True}, "headless with"),
        ({"executor": "ray"}, "For ranks on several, leave out --data-parallel-backend"),
        ({"data_parallel_address": "0.0.0.0"}, "give the one address that others reach it by"),
        ({"cluster_key": "short"}, "16 or more"),
    ],
)
def test_where_replicas_are_is_not_said_twice(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(**PLACED, **given)


def test_who_places_them_is_known_by_name() -> None:
    settings, loaded = read_arguments({"model": "lsv-demo", **PLACED, "data_parallel_backend": "rai"})
    with pytest.raises(ConfigError, match=r"no data-parallel back end 'rai'; did you mean ray\?"):
        resolve(settings, loaded)
