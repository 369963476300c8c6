"""What Ray is asked to reserve and to start workers with, and what is refused. Needs no Ray."""

from __future__ import annotations

import pytest

from lsv import plugins
from lsv.config import ReplicaNodes, Topology
from lsv.offers import PlatformOffer
from lsv_ray import plugin
from lsv_ray.plugin import lsv_check_config
from lsv_testing.fakes.engine import engine_config


@pytest.mark.row("F-285")
def test_nsight_is_for_workers_of_ray() -> None:
    (problem,) = lsv_check_config(engine_config(options={"ray.nsight": True}))
    assert "for the workers of --distributed-executor-backend ray" in problem
    assert list(lsv_check_config(engine_config(options={"ray.nsight": False}, topology=Topology(tensor=2)))) == []


def test_what_is_missing_is_named_by_the_option_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "is_installed", lambda: False)
    nodes = ReplicaNodes(headless=False, address="", port=1, patience=1.0, placer="ray")
    asked = [engine_config(executor="ray"), engine_config(replica_nodes=nodes), engine_config()]
    found = [list(lsv_check_config(one)) for one in asked]
    needs = "ray needs a package that is not installed: pip install -e '.[ray]' in a clone of lsv"
    assert found == [[f"executor {needs}"], [f"data_parallel_backend {needs}"], []]


@pytest.mark.parametrize(
    ("platform", "device"),
    [("cpu", ""), ("torch", ""), ("hpu", "HPU"), ("cuda", "GPU"), ("rocm", "GPU"), ("xpu", "GPU")],
)
def test_devices_by_what_ray_calls_them(platform: str, device: str) -> None:
    assert plugins.load().catalog.find(PlatformOffer, platform).resource == device
