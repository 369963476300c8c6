"""Loading the Gaudi software: what goes wrong with it, and what it must find in its environment.

The package written here has the checks of the real one, gaudi-pytorch-bridge v1.19.0 (5a56187):
``python_packages/habana_frameworks/torch/__init__.py``, ``habana_frameworks/autoload/__init__.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lsv_base.errors import ConfigError
from lsv_hpu.devices import NAMES
from lsv_hpu.emulation.platform import EmulatedHpu
from lsv_hpu.platform import HpuPlatform
from lsv_hpu.software import load
from lsv_hpu.vendor_ops import installed

CHECKS = """
import ctypes
import torch
from packaging.version import Version

compile_time_ver = Version("{built}")
run_time_ver = Version(torch.__version__)
is_torch_fork = run_time_ver.local.startswith("git")
assert (
    run_time_ver.major == compile_time_ver.major and run_time_ver.minor == compile_time_ver.minor
), f"Error: Compile-time major/minor PyTorch version {{compile_time_ver}} differs from run-time {{run_time_ver}}."
ctypes.CDLL("/nowhere/libhabana_pytorch2_plugin.so", ctypes.RTLD_GLOBAL)
"""
AUTOLOAD = """
import os


def __autoload():
    names = ("PT_HPU_LAZY_MODE", "PT_ENABLE_INT64_SUPPORT")
    print("autoloaded with", *(f"{name}={os.environ.get(name)}" for name in names))
"""
START = """
import sys
from lsv import plugins
from lsv.engine.main import make_engine
from lsv_testing.fakes.client import fake_config

config = fake_config(platform="hpu", executor="inline", emulate=True)
assert "torch" not in sys.modules
make_engine(config, plugins.load())
assert "torch" in sys.modules
"""


@pytest.fixture
def software(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its package, importable and empty."""
    package = tmp_path / "habana_frameworks"
    for folder in (package, package / "torch", package / "autoload"):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("habana_frameworks")]:
        monkeypatch.delitem(sys.modules, name)
    yield package
    for name in [name for name in sys.modules if name.startswith("habana_frameworks")]:
        del sys.modules[name]


@pytest.mark.row("F-466")
@pytest.mark.parametrize(
    ("present", "built", "words"),
    [
        ("2.13.0", "2.9.0", ("from another index", "AttributeError: 'NoneType' object has no attribute 'startswith'")),
        ("2.13.0+cpu", "2.9.0", ("AssertionError: Error: Compile-time major/minor", "2.9.0 differs from run-time")),
        ("2.9.0+gitabc", "2.9.0", ("OSError: /nowhere/libhabana_pytorch2_plugin.so",)),
    ],
)
def test_another_torch_than_the_images_is_named(
    software: Path, monkeypatch: pytest.MonkeyPatch, present: str, built: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(HpuPlatform, "devices", lambda self: EmulatedHpu().devices())
    monkeypatch.setattr(torch, "__version__", present)
    for name in ("PT_HPU_LAZY_MODE", "HLS_MODULE_ID", "PT_ENABLE_INT64_SUPPORT", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.setenv(name, "to be restored")
    (software / "torch" / "__init__.py").write_text(CHECKS.format(built=built))
    with pytest.raises(ConfigError) as refused:
        HpuPlatform().open(0, {})
    message = refused.value.message
    recipe = ("pip list --format=freeze | grep '^torch' > constraints.txt", "-c constraints.txt", "--no-deps", "1.23")
    assert f"habana_frameworks.torch can't be loaded beside torch {present}" in message
    assert all(word in message for word in (*words, *recipe)), message


def test_software_without_what_is_needed_of_it(software: Path) -> None:
    with pytest.raises(ConfigError, match=r"hpex.kernels:FusedSDPA can't be loaded .*ModuleNotFoundError"):
        installed(next(iter(NAMES)))
    (software / "torch" / "hpex").mkdir()
    for name in ("hpex/__init__.py", "hpex/kernels.py"):
        (software / "torch" / name).write_text("")
    with pytest.raises(ConfigError, match=r"hpex.kernels:FusedSDPA can't be loaded .*AttributeError"):
        load("habana_frameworks.torch.hpex.kernels:FusedSDPA")


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({}, ""),
        ({"PT_HPU_LAZY_MODE": "0"}, ""),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, "autoloaded with PT_HPU_LAZY_MODE=0 PT_ENABLE_INT64_SUPPORT=1\n"),
    ],
)
def test_flags_are_set_before_torch_is_imported(software: Path, given: dict[str, str], printed: str) -> None:
    """torch loads the software when it is imported, unless told not to: what it reads then must be there."""
    (software / "autoload" / "__init__.py").write_text(AUTOLOAD)
    info = software.parent / "habana_torch_plugin-1.23.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: habana-torch-plugin\nVersion: 1.23\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ndevice_backend = habana_frameworks.autoload:__autoload\n")
    flags = ("PT_HPU_LAZY_MODE", "PT_ENABLE_INT64_SUPPORT", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    kept = {name: value for name, value in os.environ.items() if name not in flags}
    found = subprocess.run(
        [sys.executable, "-c", START],
        env={**kept, **given, "PYTHONPATH": str(software.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == printed
