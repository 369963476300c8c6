"""What Ray is asked to reserve and to start workers with, and what is refused. Needs no Ray."""

from __future__ import annotations

import pytest

from lsv import plugins
from lsv.config import Topology
from lsv.offers import PlatformOffer
from lsv.testing.fakes.engine import engine_config
from lsv_ray.plugin import lsv_check_config


@pytest.mark.row("F-285")
def test_nsight_is_for_workers_of_ray() -> None:
    (problem,) = lsv_check_config(engine_config(options={"ray.nsight": True}))
    assert "for the workers of --distributed-executor-backend ray" in problem
    assert list(lsv_check_config(engine_config(options={"ray.nsight": False}, topology=Topology(tensor=2)))) == []


@pytest.mark.parametrize(
    ("platform", "device"),
    [("cpu", ""), ("torch", ""), ("hpu", "HPU"), ("cuda", "GPU"), ("rocm", "GPU"), ("xpu", "GPU")],
)
def test_devices_by_what_ray_calls_them(platform: str, device: str) -> None:
    assert plugins.load().catalog.find(PlatformOffer, platform).resource == device
