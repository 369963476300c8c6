"""Instruction sets for tests of the native CPU kernels: the machine has some, the others are emulated."""

from __future__ import annotations

from lsv_cpu.machine import Machine

MACHINE = Machine().instruction_sets()
"""The most recent first."""


def emulation(isa: str) -> str:
    """What emulates ``isa``, one with AVX-512 or tiles. Tiles alone are emulated where the machine has the rest."""
    if isa == "amx":
        return "amx_emulated" if "avx512_bf16" in MACHINE else "amx_and_avx512_emulated"
    return f"{isa}_emulated"


def runnable(isa: str) -> str:
    """``isa`` itself where this machine has it, otherwise what emulates it."""
    return isa if isa in ("generic", *MACHINE) else emulation(isa)


EMULATED = tuple(
    emulation(isa)
    for isa in ("amx", "avx512_bf16", "avx512_vnni", "avx512")
    if "avx2" in MACHINE and isa not in MACHINE
)
"""What this machine lacks and can emulate."""
RUNNABLE = ("generic", *MACHINE, *EMULATED)
