"""How a machine runs its processors, as it is told and as a script sets it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lsv_doctor.pace import look

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "performance.sh"
CPU = "sys/devices/system/cpu"
SLOW = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance",
    f"{CPU}/cpu2/cpufreq/scaling_governor": "powersave",
    "proc/sys/kernel/numa_balancing": "1",
}


def machine(folder: Path, **files: str) -> Path:
    for name, value in {**SLOW, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")
    return folder


@pytest.mark.row("F-909")
@pytest.mark.parametrize(("turbo", "slow"), [(f"{CPU}/intel_pstate/no_turbo", "1"), (f"{CPU}/cpufreq/boost", "0")])
def test_what_is_slow_is_said_and_set(tmp_path: Path, turbo: str, slow: str) -> None:
    root = machine(tmp_path, **{turbo: slow})
    found = dict(look(root))
    assert found["governor"].startswith("powersave on 2, performance on 1 of 3 cores: performance is faster")
    assert found["turbo"].startswith("off: on is faster")
    assert found["numa balancing"].startswith("on: off is faster")
    subprocess.run([SCRIPT], env={**os.environ, "ROOT": str(root)}, check=True, capture_output=True)
    assert dict(look(root)) == {"governor": "performance on 3 of 3 cores", "turbo": "on", "numa balancing": "off"}


def test_a_machine_that_shows_nothing_is_not_spoken_of(tmp_path: Path) -> None:
    assert dict(look(tmp_path)) == {}
    done = subprocess.run([SCRIPT], env={**os.environ, "ROOT": str(tmp_path)}, check=True, capture_output=True)
    assert done.stdout == b""
