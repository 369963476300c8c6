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


XE, I915 = "sys/class/drm/card1/device/tile0/gt0/freq0", "sys/class/drm/card0/gt/gt0"
CLOCKS = {
    "xe": {f"{XE}/rp0_freq": "2450", f"{XE}/max_freq": "2000", f"{XE}/min_freq": "300", f"{XE}/rpn_freq": "300"},
    "i915": {
        f"{I915}/rps_RP0_freq_mhz": "2400", f"{I915}/rps_max_freq_mhz": "2000", f"{I915}/rps_boost_freq_mhz": "2000",
        f"{I915}/rps_min_freq_mhz": "300",
    },
    "older i915": {
        "sys/class/drm/card0/gt_RP0_freq_mhz": "1550", "sys/class/drm/card0/gt_max_freq_mhz": "1200",
        "sys/class/drm/card0/gt_boost_freq_mhz": "1200", "sys/class/drm/card0/gt_min_freq_mhz": "100",
    },
}  # fmt: skip


@pytest.mark.row("F-465")
@pytest.mark.parametrize("driver", CLOCKS)
def test_clocks_of_cards_are_held_at_the_fastest(tmp_path: Path, driver: str) -> None:
    root = machine(tmp_path, **CLOCKS[driver])
    assert dict(look(root))["gpu clocks"].startswith(
        "held at the fastest on 0 of 1 parts of cards: all of them is faster"
    )
    done = subprocess.run([SCRIPT], env={**os.environ, "ROOT": str(root)}, check=True, capture_output=True, text=True)
    assert dict(look(root))["gpu clocks"] == "held at the fastest on 1 of 1 parts of cards"
    (fastest,) = {value for name, value in CLOCKS[driver].items() if "rp0" in name.lower()}
    for name in CLOCKS[driver]:
        slowest = name.endswith("rpn_freq")
        assert (root / name).read_text().strip() == ("300" if slowest else fastest)
    told = [line for line in done.stdout.splitlines() if "/drm/" in line]
    assert [("max" in line, "min" in line) for line in (told[0], told[-1])] == [(True, False), (False, True)]


def test_all_parts_of_all_cards_are_set(tmp_path: Path) -> None:
    more = {name.replace("card1", "card2").replace("gt0", "gt1"): value for name, value in CLOCKS["xe"].items()}
    root = machine(tmp_path, **CLOCKS["xe"], **more, **CLOCKS["i915"], **CLOCKS["older i915"])
    subprocess.run([SCRIPT], env={**os.environ, "ROOT": str(root)}, check=True, capture_output=True)
    assert dict(look(root))["gpu clocks"] == "held at the fastest on 3 of 3 parts of cards"


def test_a_machine_that_shows_nothing_is_not_spoken_of(tmp_path: Path) -> None:
    assert dict(look(tmp_path)) == {}
    done = subprocess.run([SCRIPT], env={**os.environ, "ROOT": str(tmp_path)}, check=True, capture_output=True)
    assert done.stdout == b""
