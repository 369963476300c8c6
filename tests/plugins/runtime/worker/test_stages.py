"""What stages of a start take, as the log has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsv_base.processes.usage import GIB, host_usage, written
from lsv_runtime.devices.device import Memory
from lsv_runtime.worker.load.stages import Stages


class FakeDevice:
    """One whose memory fills and empties as it is told."""

    shares_host = False

    def __init__(self, *used: int) -> None:
        self._used, self.waited = iter(used), 0

    def synchronize(self) -> None:
        self.waited += 1

    def memory(self) -> Memory:
        used = next(self._used) * GIB
        return Memory(96 * GIB, 96 * GIB - used, used)


@pytest.mark.row("F-500")
def test_each_stage_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    device: Any = FakeDevice(2, 5, 4)
    stages = Stages(device)
    with caplog.at_level("INFO", "lsv_runtime"):
        stages.tell("Loading weights")
        stages.tell("init_cache_engine")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("Loading weights took 3 GiB of device memory (5 GiB/96 GiB used) and ")
    assert re.search(r" of host memory \([\d.]+ \w+/[\d.]+ \w+ used\) in \d+\.\d\d seconds$", first)
    assert second.startswith("init_cache_engine freed 1 GiB of device memory (4 GiB/96 GiB used) and ")
    assert device.waited == 3


def test_a_stage_that_takes_nothing_is_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    device: Any = FakeDevice(2, 2)
    stages = Stages(device)
    with caplog.at_level("DEBUG", "lsv_runtime"):
        stages.tell("Warm-up")
    (record,) = caplog.records
    assert (record.levelname, "-" in record.getMessage().removeprefix("Warm-up")) == ("DEBUG", False)


@pytest.mark.row("F-500")
def test_a_device_in_the_hosts_memory_has_the_figures_of_its_process(caplog: pytest.LogCaptureFixture) -> None:
    device: Any = FakeDevice(9, 5)
    device.shares_host = True
    stages = Stages(device)
    with caplog.at_level("DEBUG", "lsv_runtime"):
        block = np.ones(256 << 20, np.uint8)
        stages.tell("Loading weights")
    (record,) = caplog.records
    found = re.fullmatch(
        r"Loading weights took ([\d.]+) MiB of host memory \([\d.]+ \w+/[\d.]+ \w+ used\) in \d+\.\d\d seconds",
        record.getMessage(),
    )
    assert found, record.getMessage()
    assert float(found[1]) == pytest.approx(block.nbytes / 2**20, abs=16)


def test_the_hosts_memory(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tpython\nVmSize:\t  900 kB\nVmRSS:\t  600 kB\n")
    (tmp_path / "meminfo").write_text("MemTotal:        1000 kB\nMemFree:  1 kB\nHugePages_Total: 0\n")
    assert host_usage(tmp_path) == (600 << 10, 1000 << 10)
    (tmp_path / "self/status").write_text("Name:\tpython\n")
    assert host_usage(tmp_path).used == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (round(79.16 * GIB), "79.16 GiB"),
        (round(161.9 * 2**20), "161.9 MiB"),
        (GIB, "1 GiB"),
        (0, "0 B"),
        (-3 << 20, "-3 MiB"),
    ],
)
def test_bytes_in_four_digits(count: int, text: str) -> None:
    assert written(count) == text
