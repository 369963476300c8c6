"""What each replica runs, and on which part of the machine."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from lsv import LLM, plugins
from lsv.cli.serve import _restart_limit
from lsv.config import ReplicaNodes, Topology
from lsv.processes.nodes.newcomer import differences
from lsv.resolve import resolve
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments
from lsv_runtime.worker.load import device
from lsv_testing.fakes.client import fake_config


def test_every_replica_has_the_same_configuration_but_for_its_number():
    config = fake_config(topology=Topology(data=3, tensor=2))
    each = config.replicas()
    assert [one.topology.replica for one in each] == [0, 1, 2]
    assert {one.fingerprint() for one in each} == {config.fingerprint()}
    assert config.fingerprint() != fake_config().fingerprint()


def test_ranks_of_all_replicas_share_the_machine(monkeypatch: pytest.MonkeyPatch):
    opened: list[tuple[Any, ...]] = []
    monkeypatch.setattr(device, "load_platform", lambda *_, **__: None)
    monkeypatch.setattr(device, "open_rank", lambda platform, *asked: opened.append(asked))
    for one in fake_config(topology=Topology(data=2, tensor=2), device=4).replicas():
        for rank in range(2):
            device.open_device(one, plugins.load(()).catalog, rank)
    assert opened == [(rank, 4, {}, 4) for rank in range(4)], "rank, ranks, options, first device"


@pytest.mark.row("F-281")
@pytest.mark.parametrize("local", [None, 2])
def test_the_number_of_replicas_is_an_option(local: int | None):
    settings, loaded = read_arguments({"model": "lsv-demo", "data_parallel_size": 2, "data_parallel_size_local": local})
    assert resolve(settings, loaded).topology == Topology(data=2)


@pytest.mark.row("F-571")
def test_a_machine_is_divided_among_the_replicas_that_it_has(monkeypatch: pytest.MonkeyPatch):
    opened: list[tuple[Any, ...]] = []
    monkeypatch.setattr(device, "load_platform", lambda *_, **__: None)
    monkeypatch.setattr(device, "open_rank", lambda platform, *asked: opened.append(asked))
    config = fake_config(topology=Topology(data=5, tensor=2, local=(2, 3)))
    assert [one.topology.replica for one in config.local_replicas()] == [2, 3, 4]
    for one in config.local_replicas():
        for rank in range(2):
            device.open_device(one, plugins.load(()).catalog, rank)
    assert opened == [(rank, 6, {}, 0) for rank in range(6)]


def test_all_machines_have_the_same_configuration_but_for_their_place():
    nodes = ReplicaNodes(headless=False, address="head", port=5000, patience=60.0)
    one = fake_config(topology=Topology(data=3, local=(0, 1)), replica_nodes=nodes)
    other = fake_config(
        topology=Topology(data=3, replica=2, local=(1, 2)), replica_nodes=structs.replace(nodes, headless=True)
    )
    assert one.fingerprint() == other.fingerprint() == fake_config(topology=Topology(data=3)).fingerprint()
    assert differences(one, other) == []
    assert "max_model_len" in differences(one, structs.replace(other, max_model_len=7))[0]


def test_an_engine_in_this_process_has_no_replicas():
    with pytest.raises(ConfigError, match="data_parallel_size: LLM runs one engine"):
        LLM("lsv-demo", data_parallel_size=2)


@pytest.mark.parametrize(
    ("asked", "replicas", "expected"), [(None, 1, 0), (None, 2, 5), (True, 1, 5), (False, 2, 0), (True, 2, 5)]
)
def test_replicas_are_started_again_unless_told_otherwise(asked: bool | None, replicas: int, expected: int):
    settings: Any = {"restart_engine": asked, "restart_limit": 5}
    assert _restart_limit(fake_config(topology=Topology(data=replicas)), settings) == expected
