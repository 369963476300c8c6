"""Zygotes for tests: a pytest plugin of each process that runs tests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext

import pytest

from suite.zygote.asker import MOST_ZYGOTES, Asker


class Zygotes:
    """Tests that are marked ``cold`` start all processes as users start them."""

    def __init__(self) -> None:
        self._asker = Asker({}, MOST_ZYGOTES)

    def pytest_sessionstart(self) -> None:
        self._asker.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._asker.paused() if item.get_closest_marker("cold") else nullcontext():
            return (yield)

    def pytest_sessionfinish(self) -> None:
        self._asker.close()
