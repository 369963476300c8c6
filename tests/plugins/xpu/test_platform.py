"""The xpu platform without a device: what users are told, and its conformance where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lsv_base.errors import ConfigError
from lsv_testing.platform import check_platform
from lsv_xpu import plugin
from lsv_xpu.platform import XpuPlatform

(OFFER,) = plugin.lsv_platforms()
HERE = bool(plugin.probe())


def test_conforms_in_emulation() -> None:
    check_platform(OFFER, emulate=True)


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="needs an Intel GPU")
def test_conforms() -> None:
    check_platform(OFFER)


@pytest.mark.skipif(HERE, reason="there is an Intel GPU")
def test_serving_without_a_device_fails_at_once_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lsv", "serve", "--platform", "xpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "platform xpu finds no device: looked for Intel GPUs in /sys/class/drm" in line
    assert done.stdout == ""


@pytest.mark.skipif(getattr(torch._C, "_has_xpu", False), reason="torch has XPU")
def test_opening_says_how_to_get_torch() -> None:
    with pytest.raises(ConfigError, match="built without XPU: pip install torch --index-url"):
        XpuPlatform().open(0, {})
