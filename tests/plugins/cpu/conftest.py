from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv_base.processes.building import BuildCache, find_compilers
from lsv_cpu import native
from lsv_cpu.machine import Machine
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.devices.device import Device
from suite.instruction_sets import EMULATED, MACHINE

BETWEEN = {*MACHINE[1:], *EMULATED}
"""Kernels that take a build of their own beside the newest ones of this machine and those of any machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent and hasattr(item, "callspec")]
    for item in here:
        if BETWEEN & {value for value in item.callspec.params.values() if isinstance(value, str)}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """``LSV_CPU_ISA`` runs all of this with other instructions, emulated where this machine lacks them."""
    wanted = os.environ.get("LSV_CPU_ISA", "auto")
    monkeypatch.delenv("LSV_CPU_ISA", raising=False)  # engines would ask the machine for it
    if wanted != "auto":
        found = Machine().runnable(wanted)
        monkeypatch.setattr(native, "resolve_isa", lambda isa: found if isa == "auto" else isa)


@pytest.fixture(autouse=True)
def builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """``LSV_CPU_COMPILER`` runs all of this with kernels that another compiler has built, from a cache of its own."""
    wanted = os.environ.get("LSV_CPU_COMPILER")
    if wanted:
        monkeypatch.setattr(native, "find_compilers", lambda: find_compilers() and [wanted])  # or there is none
        monkeypatch.setattr(native, "BuildCache", lambda name, root: BuildCache(f"{name}-{Path(wanted).name}", root))


@pytest.fixture
def device() -> Iterator[Device]:
    """The cpu device with one thread; what native code it selects is forgotten afterwards."""
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()
    native.select()
