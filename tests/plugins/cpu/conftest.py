from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lsv.platform import Device
from lsv_cpu import native
from lsv_cpu.machine import Machine
from lsv_cpu.platform import CpuPlatform


@pytest.fixture(autouse=True)
def instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """``LSV_CPU_ISA`` runs all of this with older instructions, or with AMX tiles: emulated where there are none."""
    wanted = os.environ.get("LSV_CPU_ISA", "auto")
    if wanted == "amx" and "amx" not in Machine().instruction_sets():
        wanted = "amx_emulated"
    if wanted != "auto":
        monkeypatch.setattr(native, "resolve_isa", lambda isa: wanted if isa == "auto" else isa)


@pytest.fixture
def device() -> Iterator[Device]:
    """The cpu device with one thread; what native code it selects is forgotten afterwards."""
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()
    native.select()
