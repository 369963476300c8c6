from __future__ import annotations

from collections.abc import Iterator

import pytest

from lsv.platform import Device
from lsv_cpu import native
from lsv_cpu.platform import CpuPlatform


@pytest.fixture
def device() -> Iterator[Device]:
    """The cpu device with one thread; what native code it selects is forgotten afterwards."""
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()
    native.select()
