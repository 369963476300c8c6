"""``--emulate``: kernels for the instruction sets that a machine lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lsv_base.errors import ConfigError
from lsv_cpu import native
from lsv_cpu.machine import Machine
from lsv_cpu.platform import EmulatedCpuPlatform

AVX2 = ("avx2",)
BF16 = ("avx512_bf16", "avx512_vnni", "avx512", *AVX2)
TILES = ("amx", *BF16)
CASES = [
    (AVX2, "auto", "amx_and_avx512_emulated"),
    (AVX2, "amx", "amx_and_avx512_emulated"),
    (AVX2, "avx512_vnni", "avx512_vnni_emulated"),
    (AVX2, "avx_vnni", "avx_vnni_emulated"),
    (AVX2, "avx2", "avx2"),
    (BF16, "auto", "amx_emulated"),
    (BF16, "avx512", "avx512"),
    (TILES, "auto", "amx"),
]
"""The machine's instruction sets, the one asked for, and what runs."""


@pytest.mark.row("F-447")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} on {case[0][0]}")
def test_what_the_machine_lacks_is_emulated(
    case: tuple[tuple[str, ...], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, isa, found = case
    monkeypatch.setattr(Machine, "instruction_sets", lambda self: machine)
    selected: list[str] = []
    monkeypatch.setattr(native, "select", lambda isa="auto", **_: selected.append(isa))
    EmulatedCpuPlatform().open(0, {"cpu.isa": isa, "cpu.threads": 1}).close()
    assert selected == [found]


@pytest.mark.row("F-447")
def test_emulating_takes_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "instruction_sets", lambda self: ())
    for isa in ("auto", "amx"):
        with pytest.raises(ConfigError, match=r"cpu\.isa=amx is emulated with AVX2, which this machine lacks"):
            EmulatedCpuPlatform().emulated_devices({"cpu.isa": isa})


@pytest.mark.slow
@pytest.mark.row("F-447")
@pytest.mark.skipif("avx2" not in Machine().instruction_sets(), reason="emulation takes AVX2")
def test_a_process_runs_emulated_tiles() -> None:
    command = [sys.executable, "-m", "lsv", "kernels", "lsv-demo", "--platform", "cpu", "--emulate", "--cpu-isa", "amx"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert "the first choice of platform cpu; on AMX tiles" in done.stdout
