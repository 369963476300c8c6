"""Instruction sets for tests of the native CPU kernels: the machine has some, the others are emulated."""

from __future__ import annotations

from lsv_cpu.machine import INSTRUCTION_SETS, Machine

MACHINE = Machine().instruction_sets()
"""The most recent first."""
EMULATED = tuple(Machine().emulation(isa) for isa in INSTRUCTION_SETS if "avx2" in MACHINE and isa not in MACHINE)
"""What this machine lacks and can emulate."""
RUNNABLE = ("generic", *MACHINE, *EMULATED)
