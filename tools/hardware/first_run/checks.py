"""What else is run: looking around, the tests for devices, the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LSV = (sys.executable, "-m", "lsv")
WORKERS = min(8, os.cpu_count() or 1)
"""Processes that run tests, which mostly wait for compilers; each has a context on the device."""
PYTEST = (sys.executable, "-m", "pytest", "-rsfE", "-q", "-m", "gpu", "--timeout", "300", "-n", str(WORKERS))


@dataclass(frozen=True)
class Check:
    """A command; ``seconds`` is how long it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code, None where it took too long; its output is in ``log``."""

    check: Check
    code: int | None
    seconds: float
    log: Path


def look_around() -> Iterator[Check]:
    yield Check("doctor", (*LSV, "doctor"), 120)
    yield Check("plugins", (*LSV, "plugins"), 60)
    yield Check("kernels", (*LSV, "kernels", "lsv-demo"), 120)


def measure(out: Path) -> Iterator[Check]:
    """Tests for devices, one folder at a time, and the benchmarks that need one."""
    for folder in sorted(Path("tests/plugins").iterdir()):
        if folder.is_dir() and any("mark.gpu" in file.read_text(encoding="utf-8") for file in folder.rglob("*.py")):
            results = f"--junitxml={out / f'{folder.name}.xml'}"
            yield Check(f"tests of {folder.name}", (*PYTEST, results, str(folder)), 1200)
    python = sys.executable
    shapes = ("--rows", "1,16,128", "--shapes", "12288x4096,4096x11008")
    yield Check("matrix products", (python, "benchmarks/gpu_kernels.py", "--json", *shapes), 600)
    yield Check("attention", (python, "benchmarks/gpu_attention.py", "--json"), 600)
    yield Check("decoding and prompts", (python, "benchmarks/gpu_decode.py"), 600)
    yield Check("steps by rows", (python, "benchmarks/gpu_steps.py"), 600)
    yield Check("host time, greedy", (python, "benchmarks/host_time.py", "--rows", "1,32,256"), 600)
    yield Check("host time, sampled", (python, "benchmarks/host_time.py", "--rows", "1,32,256", "--sampled"), 600)


def carry_out(check: Check, out: Path) -> Done:
    log = out / f"{check.name.replace(' ', '-').replace(',', '')}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                check.command, stdout=output, stderr=subprocess.STDOUT, timeout=check.seconds, check=False
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    return Done(check, code, time.monotonic() - began, log)
