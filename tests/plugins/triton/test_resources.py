"""Every kernel compiles ahead of time for every kind of GPU, in what memory and registers a program has there.

Nothing is launched. ``tools/gpu_code.py`` shows the figures.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lsv_triton.device_table import device_kind, intel_kind, nvidia_kind

ROOT = Path(__file__).parents[3]
SHARED = {
    "80": 166912, "86": 101376, "89": 101376, "90": 232448, "100": 232448, "120": 101376,
    "gfx942": 65536, "gfx1100": 65536,
}  # fmt: skip
"""Bytes of shared memory that a program may have."""

SPILLED = {"attend_tiles": 288, "multiply": 544, "multiply_integers": 16}
"""Bytes of a thread's registers, of which it has 1020, that may lie in memory; in other kernels there are none."""

RADEON = {"attend_tiles": 928, "multiply": 128, "multiply_integers": 640}
"""The same for gfx1100, whose waves of 32 threads each hold twice as much of a tile as those of gfx942."""

HOT = ("plain, 1 rows", "fp8, 1 rows", "int8, 1 rows", "int4, 1 rows", "w4, 1 rows")
"""What most steps launch: of these at most ``_FEW`` bytes."""

FLOAT8 = ("fp8 both, 1 rows", "fp8 both, groups, 1 rows")
"""The same where the matrix unit takes e4m3."""

LOOPS = ("bfloat16 cache, cut", "bfloat16 cache, whole")
"""Attention in most steps: what lies in memory is moved where a segment ends, and never in the loops over its keys."""

_FEW = 16


@pytest.fixture(scope="module")
def gpu_code() -> ModuleType:
    """The program in tools."""
    spec = importlib.util.spec_from_file_location("gpu_code", ROOT / "tools/gpu_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched() -> set[str]:
    """The names of all kernels that the package launches."""
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "plugins/triton/lsv_triton").rglob("*.py"))
    kernels = set(re.findall(r"@triton\.jit.*\ndef (\w+)\(", code))
    return {name.strip("_") for name in kernels if re.search(rf"(?<!\w){name}\[", code)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", SHARED)
def test_every_kernel_fits(architecture: str, gpu_code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, Any]] = gpu_code.compile_for(architecture)
    assert {one["kernel"] for one in used} == launched()
    assert [one for one in used if one["shared"] > SHARED[architecture]] == []
    most = RADEON if architecture == "gfx1100" else SPILLED
    assert [one for one in used if one["spilled"] > most.get(one["kernel"], 0)] == []
    hot = {*HOT, *(() if architecture in ("80", "86", "gfx1100") else FLOAT8)}
    assert [one for one in used if one["spilled"] > _FEW and one["purpose"] in hot] == []
    assert [one for one in used if one["looped"] and one["purpose"] in LOOPS] == []
    assert {one["purpose"] for one in used} >= {*hot, *LOOPS}


def test_the_table_has_the_most_of_every_kernel(gpu_code: ModuleType) -> None:
    one = {"kernel": "rope", "purpose": "", "registers": 40, "spilled": 0, "shared": 2048}
    two = {**one, "registers": 30, "spilled": 8}
    table = gpu_code.make_table({"90": [one, two], "gfx942": [{**one, "kernel": "norm"}]})
    assert table.splitlines() == [
        "| kernel | sm_90 | gfx942 |",
        "|---|---|---|",
        "| `norm` | – | 40 · 2 |",
        "| `rope` | 40 · 2 · **8** | – |",
    ]


def test_the_targets_are_those_of_the_table(gpu_code: ModuleType) -> None:
    assert set(gpu_code.GPUS) == set(SHARED)


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        ((7, 5), "small"),  # RTX 20xx and T4, with 64 KiB of shared memory
        ((7, 0), "small"),
        ((8, 0), "ampere"),
        ((8, 6), "ada"),
        ((8, 7), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((10, 3), "blackwell"),
        ((11, 0), "blackwell"),
        ((12, 0), "ada"),
        ((12, 1), "ada"),
    ],
)
def test_the_kind_of_an_nvidia_gpu_follows_from_its_capability(capability: tuple[int, int], kind: str) -> None:
    assert nvidia_kind(capability) == kind


@pytest.mark.parametrize(
    ("name", "id", "kind"),
    [
        ("Intel(R) Arc(TM) B580 Graphics", None, "arc"),
        ("Intel(R) Graphics [0xe211]", None, "arc"),
        ("Intel(R) Graphics [0x0bda]", None, "ponte_vecchio"),
        ("Intel(R) Graphics", 0x0BD5, "ponte_vecchio"),
        ("Intel(R) Data Center GPU Max 1550", None, "ponte_vecchio"),
    ],
)
def test_the_kind_of_an_intel_gpu_follows_from_its_id(name: str, id: int | None, kind: str) -> None:
    """Older drivers name cards by nothing else."""
    assert intel_kind(name, id) == kind


def test_kinds_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert device_kind(torch.device("cuda:0")) == "small"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert device_kind(torch.device("cuda:0")) == "small"
    properties = SimpleNamespace(name="Intel(R) Graphics", device_id=0x0BDA)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: properties)
    assert device_kind(torch.device("xpu:0")) == "ponte_vecchio"
    assert device_kind(torch.device("mps")) == "default"
