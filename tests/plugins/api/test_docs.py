"""docs/api.md names every route, option and metric there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lsv.settings import dashed
from lsv.settings.options import CORE
from lsv_api import plugin
from lsv_api.contracts import load_contracts
from lsv_api.options import _SETTINGS

CAPTURE = re.compile(r"<(\w+)(?::\w+)?>")
ROUTES = [route for declared in load_contracts({}) for route in declared.contract.routes]
CAPTURE = re.compile(r"<(\w+)(?::\w+)?>")

TEXT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def test_routes_are_documented():
    for route in ROUTES:
        path = CAPTURE.sub(r"{\1}", route.path)
        assert f"{route.method} {path}" in TEXT


def test_options_are_documented_and_exist():
    declared = {setting.name for setting in (*CORE, *plugin.lsv_settings())}
    for name, _ in _SETTINGS.values():
        assert name in declared
        assert f"--{dashed(name)}" in TEXT
    for flag in re.findall(r"`--([a-z-]+)`", TEXT):
        assert flag in {dashed(name) for name in declared}


@pytest.mark.row("F-1019")
async def test_metrics_are_documented(site):
    await site.complete()
    exposed = (await site.http.get("/metrics")).text
    names = {line.split()[2] for line in exposed.splitlines() if line.startswith("# TYPE")}
    for name in names:
        if not name.endswith("_created"):
            assert f"`{name}`" in TEXT, name
