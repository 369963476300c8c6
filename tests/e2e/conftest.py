"""A real server on the demo model, started once for all tests that share it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from suite.server import Server

EMULATED = "LSV_EMULATE" in os.environ
"""Whether devices are emulated: what their steps take says nothing of real ones."""

EIGHT_BITS = "fp8" if os.environ.get("LSV_PLATFORM") == "hpu" else "int8"
"""The 8-bit KV cache of tests: Gaudi has one of floats alone, plain torch one of integers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("LSV_PLATFORM") != "torch":
        return
    for item in items:
        if item.get_closest_marker("two_ranks"):
            item.add_marker(pytest.mark.skip(reason="the platform computes on one device"))


_Report = Generator[None, pytest.TestReport, pytest.TestReport]

_REFUSED = re.compile(
    r"takes flat batches, and platform \w+ makes padded ones|recurrent layers, and platform \w+ makes padded batches|"
    r"dtype \w+ is not one of the platform's"
)
"""What platforms say of options and models that others have."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> _Report:
    """A test of what an emulated platform refuses by name is skipped there."""
    report = yield
    error = call.excinfo and call.excinfo.value
    if EMULATED and isinstance(error, ConfigError) and (found := _REFUSED.search(error.message)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {found[0]}")
    return report


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model, served once per test process."""
    folder = tmp_path_factory.mktemp("server")
    running = Server(folder / "server.log", "--api-responses-path", str(folder / "responses.db"))
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[type[Server]]:
    """A factory of servers for tests that break them; whatever is left is killed."""
    made: list[Server] = []

    class Own(Server):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path / f"server{len(made)}.log", *arguments)
            made.append(self)

    yield Own
    for left in made:
        left.close_clients()
        if left.process.poll() is None:
            left.process.kill()
            left.process.wait()
