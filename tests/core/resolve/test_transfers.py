"""Servers that share requests: which part this one plays, and what it can't do with it."""

from __future__ import annotations

from typing import Any

import pytest

from lsv.config import Transfers
from lsv.resolve import resolve
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments

PATH = {"kv_offload_path": "/tmp/kv"}
PRODUCER: dict[str, Any] = {**PATH, "kv_role": "producer"}
CONSUMER: dict[str, Any] = {**PATH, "kv_role": "consumer", "kv_peers": "one:5600"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CLUSTER_KEY", "a secret of two engines")


def transfers(**given: Any) -> Transfers | None:
    settings, loaded = read_arguments({"model": "lsv-demo", **given})
    offload = resolve(settings, loaded).offload
    return None if offload is None else offload.transfers


def test_without_a_role_there_is_none():
    assert transfers() is None
    assert transfers(**PATH) is None


def test_roles_say_who_does_what():
    assert transfers(**PRODUCER) == Transfers(
        produces=True, consumes=False, host="127.0.0.1", port=5600, peers=(), timeout=10.0
    )
    found = transfers(**{**CONSUMER, "kv_peers": "One:5600,[::1]:7", "kv_timeout": 2})
    assert found is not None
    assert (found.produces, found.consumes, found.peers, found.timeout) == (False, True, ("one:5600", "[::1]:7"), 2.0)
    both = transfers(**PATH, kv_role="kv_both", kv_host="10.0.0.1", kv_port=6000)
    assert both is not None
    assert (both.produces, both.consumes, both.host, both.port) == (True, True, "10.0.0.1", 6000)


def test_vllm_has_other_names_for_it(monkeypatch):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "10.0.0.1")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5559")
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu"}
    found = transfers(**PATH, kv_transfer_config=config)
    assert found is not None
    assert (found.produces, found.consumes, found.host, found.port) == (True, False, "10.0.0.1", 5559)
    found = transfers(**PATH, kv_transfer_config={**config, "kv_ip": "10.0.0.9", "kv_port": 14579})
    assert found is not None
    assert (found.host, found.port) == ("10.0.0.9", 14579)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_role": "producer"}, "needs --kv-offload-path"),
        ({"kv_role": "producer", "kv_offload_gib": 0.1}, "needs --kv-offload-path"),
        ({**PATH, "kv_role": "consumer"}, "needs --kv-peers"),
        ({**PRODUCER, "kv_peers": "one:5600"}, "a producer fetches nothing"),
        ({**PATH, "kv_peers": "one:5600"}, "for a server with --kv-role"),
        ({**CONSUMER, "kv_peers": "one"}, "must be host:port"),
        ({**PRODUCER, "kv_host": "0.0.0.0"}, "the one address that others reach it by"),
        ({**PRODUCER, "cluster_key": "short"}, "has 5 characters"),
        ({**PRODUCER, "data_parallel_size": 2}, "start a server for each"),
        ({**PRODUCER, "executor": "ray"}, "all ranks are on one machine"),
        ({**PATH, "kv_transfer_config": {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}}, "NixlConnector"),
        ({**PATH, "kv_transfer_config": {"kv_connector": "NixlConnector"}}, "kv_role must be one of"),
        ({**PATH, "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_rolle": 1}}, "kv_rolle is not known"),
        (
            {**CONSUMER, "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}},
            "say different things",
        ),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(given, said):
    with pytest.raises(ConfigError, match=said):
        transfers(**given)


def test_a_secret_is_needed(monkeypatch):
    monkeypatch.delenv("LSV_CLUSTER_KEY")
    with pytest.raises(ConfigError, match="set the variable LSV_CLUSTER_KEY to the same"):
        transfers(**PRODUCER)
