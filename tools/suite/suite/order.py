"""Keeps modules together and runs the longest first, so that fixtures are built once and workers end together.

A worker takes a module at a time, with all tests of its group (``xdist_group``). A very long module is split.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadgroup import LoadGroupScheduling

from suite import durations
from suite.durations import UNKNOWN, module_of

LONGEST = 60.0
"""Seconds of the longest part of a module that is cut."""


class ModuleScheduling(LoadGroupScheduling):
    """Gives a worker a module or a part of one at a time, in the order in which tests were collected."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._parts: dict[str, str] = {}

    def schedule(self) -> None:
        if self.collection is None:
            tests = next(iter(self.registered_collections.values()))
            self._parts = cut(tests, durations.expect(self.config.option.markexpr))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return self._parts[nodeid] if group == nodeid else group


def put_longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sort tests by what their groups take, in place."""
    counts = Counter(module_of(item.nodeid) for item in items)
    taken: defaultdict[str, float] = defaultdict(float)
    for item in items:
        module = module_of(item.nodeid)
        taken[_group(item)] += seconds.get(module, UNKNOWN) / counts[module]
    items.sort(key=lambda item: (-taken[_group(item)], _group(item)))


def _group(item: pytest.Item) -> str:
    named = item.get_closest_marker("xdist_group")
    return module_of(item.nodeid) if named is None else named.args[0]


def cut(tests: list[str], seconds: dict[str, float]) -> dict[str, str]:
    """The part of each test: its module, or one of as many equal parts as keep each below ``LONGEST``."""
    counts, seen = Counter(map(module_of, tests)), Counter[str]()
    parts = {}
    for test in tests:
        module = module_of(test)
        number = math.ceil(seconds.get(module, UNKNOWN) / LONGEST)
        part = seen[module] * number // counts[module]
        parts[test] = f"{module}#{part}" if part else module
        seen[module] += 1
    return parts
