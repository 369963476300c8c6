"""Looking for GPUs: what is found, and what is said where there is none to be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lsv_cuda import machine
from lsv_cuda.machine import ASK, Machine, capability
from lsv_cuda.makers import AMD

GIB = 1 << 30
H200 = ["NVIDIA H200", 140 * GIB, 9, 0, 132]
T4 = ["Tesla T4", 15 * GIB, 7, 5, 40]
OLD = ["Tesla P100", 16 * GIB, 6, 0, 56]
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version: 12\n"


@pytest.fixture
def driven(tmp_path: Path) -> Machine:
    """A machine with a driver."""
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(DRIVER)
    return Machine(tmp_path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without one, on which torch is never asked."""
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine, "ask_child", lambda script: pytest.fail("torch is asked without a driver"))
    return Machine(tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    known = {"torch": "2.13.0", "cuda": "13.0", "hip": None, "visible": {}, "gpus": []}
    monkeypatch.setattr(machine, "ask_child", lambda script: {**known, **found})


def test_no_driver(bare: Machine) -> None:
    assert bare.gpus() == ()
    said = bare.explain()
    assert "looked for an NVIDIA driver (/proc/driver/nvidia/version, /dev/nvidiactl, /dev/dxg, nvidia-smi)" in said
    assert "install the driver, or start the container with --gpus all" in said


def test_gpus(driven: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, gpus=[H200, T4])
    first, second = driven.gpus()
    assert (first.index, first.name, first.total_bytes) == (0, "NVIDIA H200", 140 * GIB)
    assert first.detail == {"compute_capability": "9.0", "multiprocessors": "132"}
    assert (second.index, capability(second)) == (1, (7, 5))


@pytest.mark.row("F-442")
def test_an_old_gpu_ends_the_list(driven: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, gpus=[T4, OLD])
    assert [gpu.name for gpu in driven.gpus()] == ["Tesla T4"]
    answer(monkeypatch, gpus=[OLD])
    assert driven.gpus() == ()
    assert "found Tesla P100 of compute capability 6.0, but 7.0 is the lowest" in driven.explain()


@pytest.mark.row("F-818")
@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"cuda": None}, "found the NVIDIA driver 580.95.05, but torch 2.13.0 is built without CUDA: reinstall it"),
        (
            {"visible": {"CUDA_VISIBLE_DEVICES": ""}},
            "sees no GPU within CUDA_VISIBLE_DEVICES='': name GPUs that are there, or unset",
        ),
        (
            {"error": "RuntimeError: The NVIDIA driver on your system is too old"},
            "(CUDA 13.0) sees no GPU: RuntimeError: The NVIDIA driver on your system is too old; a driver older than",
        ),
        ({}, "sees no GPU: nvidia-smi must list one"),
    ],
)
def test_a_driver_without_a_gpu(
    driven: Machine, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], said: str
) -> None:
    answer(monkeypatch, **found)
    assert driven.gpus() == ()
    assert said in driven.explain()


def test_a_torch_that_can_not_be_asked(driven: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ask_child", lambda script: None)
    assert driven.gpus() == ()
    assert "torch can't be asked about GPUs (the process that was to ask it failed)" in driven.explain()
    broken = {"visible": {}, "gpus": [], "error": "ModuleNotFoundError: No module named 'torch'"}
    monkeypatch.setattr(machine, "ask_child", lambda script: broken)
    assert "(ModuleNotFoundError: No module named 'torch')" in driven.explain()


def test_other_signs_of_a_driver(bare: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bare.driver() is None
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert bare.driver() == "an NVIDIA driver"
    (tmp_path / "dev/dxg").unlink()
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert bare.driver() == "an NVIDIA driver"


FAKE_TORCH = """
from types import SimpleNamespace
__version__ = "9.9"
version = SimpleNamespace(cuda="13.0", hip=None)
class cuda:
    device_count = lambda: 1
    def get_device_properties(index):
        return SimpleNamespace(name="GPU", total_memory=5, major=8, minor=9, multi_processor_count=3)
"""


@pytest.mark.row("F-818", "F-444")
def test_the_question_itself(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    environment = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout) == {
        "visible": {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": None}, "gpus": [["GPU", 5, 8, 9, 3, ""]],
        "torch": "9.9", "cuda": "13.0", "hip": None,
    }  # fmt: skip
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: not found')")
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout)["error"] == "OSError: libcudart.so.13: not found"


MI300 = ["AMD Instinct MI300X", 192 * GIB, 9, 4, 304, "gfx942"]


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with AMD's driver."""
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    file = tmp_path / "sys/module/amdgpu/version"
    file.parent.mkdir(parents=True)
    file.write_text("6.14.14\n")
    return Machine(tmp_path, AMD)


@pytest.mark.row("F-439", "F-550")
def test_gpus_of_amd(amd: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, cuda=None, hip="7.1", gpus=[MI300])
    (gpu,) = amd.gpus()
    assert (gpu.name, gpu.detail["target"], gpu.detail["multiprocessors"]) == ("AMD Instinct MI300X", "gfx942", "304")
    assert Machine(amd._root).gpus() == (), "they are none of NVIDIA's"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "found the AMD driver 6.14.14, but torch 2.13.0 is built without ROCm: reinstall it from"),
        (
            {"hip": "7.1", "visible": {"HIP_VISIBLE_DEVICES": "7"}},
            "(ROCm 7.1) sees no GPU within HIP_VISIBLE_DEVICES='7': name GPUs that are there",
        ),
        ({"hip": "7.1"}, "amd-smi must list one; install the driver, or start the container with --device /dev/kfd"),
    ],
)
def test_no_gpu_of_amd(amd: Machine, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], said: str) -> None:
    answer(monkeypatch, **found)
    assert amd.gpus() == ()
    assert said in amd.explain()
