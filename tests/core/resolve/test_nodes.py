"""Several machines: which of them this is, and what a launcher's variables may say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lsv import LLM, AsyncLLMEngine
from lsv.config import Nodes, Topology
from lsv.resolve import resolve
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments

KEY = "a secret of two machines"
TWO: dict[str, Any] = {"nnodes": 2, "tensor_parallel_size": 2}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what options hand on is taken back behind a test."""
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


def nodes(**given: Any) -> Nodes | None:
    settings, loaded = read_arguments({"model": "lsv-demo", **given})
    return resolve(settings, loaded).nodes


def test_a_machine_is_told_which_it_is() -> None:
    found = nodes(**TWO, node_rank=1, master_addr="head", master_port=5000, node_timeout=9)
    assert found == Nodes(count=2, number=1, address="head", port=5000, patience=9.0)
    topology = Topology(tensor=2, pipeline=2)
    assert [found.ranks(topology, number) for number in range(2)] == [range(2), range(2, 4)]


LAUNCHED = {
    "torchrun": {"GROUP_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"},
    "slurm": {"SLURM_NODEID": "1", "SLURM_NNODES": "2", "MASTER_ADDR": "head"},
    "plain": {"NODE_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "5000"},
}


@pytest.mark.parametrize(("launcher", "port"), [("torchrun", 29501), ("slurm", 29501), ("plain", 5000)])
def test_launchers_say_it_where_several_machines_are_asked_for(
    launcher: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED[launcher].items():
        monkeypatch.setenv(name, value)
    assert nodes() is None, "variables alone change nothing"
    found = nodes(**TWO)
    assert found is not None
    assert (found.number, found.address, found.port) == (1, "head", port)
    mine = nodes(**TWO, node_rank=0, master_addr="other")
    assert mine is not None
    assert (mine.number, mine.address) == (0, "other")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**TWO, "master_addr": "head"}, "needs --node-rank"),
        ({**TWO, "node_rank": 0}, "needs --master-addr"),
        ({**TWO, "node_rank": 2, "master_addr": "head"}, "must be less than nnodes=2"),
        ({**TWO, "cluster_key": "short", "node_rank": 0, "master_addr": "head"}, "has 5 characters"),
        ({**TWO, "nnodes": 3, "node_rank": 0, "master_addr": "head"}, "nnodes=3 must divide the 2 ranks"),
        ({**TWO, "executor": "inline", "node_rank": 0, "master_addr": "head"}, "executor inline knows nothing"),
        ({"node_rank": 1}, "say how many there are by --nnodes"),
        ({"executor": "nodes"}, "set their number with --nnodes"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nodes(**given)


@pytest.mark.row("F-581", "F-806")
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("203.0.113.1", "host_ip=203.0.113.1 is not an address of this machine"),
        ("eth0", "host_ip='eth0' is not an IP address"),
        ("0.0.0.0", "host_ip=0.0.0.0 stands for all networks"),
    ],
)
def test_an_address_of_ones_own_is_checked(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", address)
    assert nodes() is None, "one machine has nobody to say it to"
    with pytest.raises(ConfigError, match=re.escape(message)):
        nodes(**TWO, node_rank=0, master_addr="head")
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.2")
    assert nodes(**TWO, node_rank=0, master_addr="head") is not None


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "first")
    with pytest.raises(ConfigError, match="NODE_RANK: node-rank must be a whole number"):
        nodes(**TWO, master_addr="head")


def test_a_secret_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSV_CLUSTER_KEY")
    with pytest.raises(ConfigError, match="set the variable LSV_CLUSTER_KEY to the same"):
        nodes(**TWO, node_rank=0, master_addr="head")


def test_an_engine_of_a_program_is_the_first_machine() -> None:
    second = {**TWO, "node_rank": 1, "master_addr": "head"}
    with pytest.raises(ConfigError, match="LLM is node 0"):
        LLM("lsv-demo", **second)
    with pytest.raises(ConfigError, match="AsyncLLMEngine is node 0"):
        AsyncLLMEngine(*read_arguments({"model": "lsv-demo", **second}))
