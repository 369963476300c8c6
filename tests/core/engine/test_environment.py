"""What a platform's libraries read when torch is imported is set before anything could import it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from lsv import hookimpl
from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.engine.main import make_engine
from lsv.offers import ExecutorOffer, PlatformOffer, PolicyOffer
from lsv.platform import Platform
from lsv_runtime.devices.device import Device
from lsv_testing.fakes.client import fake_config
from lsv_testing.plugins import plugins_of

EXECUTOR = """
import os

SEEN = {name: os.environ.get(name) for name in ("EARLY", "OWN")}


class Executor:
    def __init__(self, catalog):
        pass
"""


class Early(Platform):
    """Its libraries want two variables."""

    name = "early"

    def devices(self) -> tuple[DeviceInfo, ...]:
        return ()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        raise NotImplementedError

    def environment(self, options: Mapping[str, OptionValue]) -> Mapping[str, str]:
        return {"EARLY": str(options["early.depth"]), "OWN": "platform"}

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        raise NotImplementedError


def test_variables_of_a_platform_are_there_before_the_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARLY", "")
    monkeypatch.delenv("EARLY")
    monkeypatch.setenv("OWN", "user")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "executor_read_late.py").write_text(EXECUTOR)
    monkeypatch.setitem(sys.modules, "platform_read_early", SimpleNamespace(Early=Early))
    manifest = SimpleNamespace(
        api=2,
        lsv_platforms=hookimpl(lambda: [PlatformOffer("early", "platform_read_early:Early", lambda: ())]),
        lsv_executors=hookimpl(lambda: [ExecutorOffer("late", "executor_read_late:Executor")]),
        lsv_policies=hookimpl(lambda: [PolicyOffer("any", "builtins:object")]),
    )
    config = fake_config(platform="early", executor="late", policy="any", options={"early.depth": 2})
    make_engine(config, plugins_of(early=manifest))
    assert sys.modules["executor_read_late"].SEEN == {"EARLY": "2", "OWN": "user"}
