"""What this machine can do at most: memory read bandwidth and arithmetic peak, measured by limits.c.

    python benchmarks/machine.py [--threads 2] [--mebibytes 1024] [--repeats 3]

Virtual machines drift by tens of per cent within minutes, so measure right beside what is to be judged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "limits.c"
FLAGS = ("-O3", "-march=native", "-pthread")
TIMEOUT = 120.0

Limits = dict[str, float]
"""threads, read_plain_gbps (a plain loop), read_gbps (best of several patterns), fp32_tflops, bf16_tflops, int8_tops.

``int8_tops`` is 0 where the processor has no instruction for it.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mebibytes", type=int, default=1024, help="memory read in a pass; far over the last cache")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for _ in range(options.repeats):
        print(json.dumps(measure_limits(options.threads, options.mebibytes)), flush=True)


def measure_limits(threads: int, mebibytes: int = 1024) -> Limits:
    """Takes about a second. Raises ``RuntimeError`` when the program can't be built or run."""
    command = [str(build()), str(threads), str(mebibytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    found: Limits = json.loads(done.stdout)
    return found


def build() -> Path:
    """The program for this processor, compiled once a source and machine."""
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    flags = [line for line in processor.splitlines() if line.startswith(("flags", "model name"))]
    key = hashlib.sha256(SOURCE.read_bytes() + "".join(flags).encode()).hexdigest()[:16]
    program = Path(tempfile.gettempdir()) / "lsv-benchmarks" / f"limits-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        command = ["cc", *FLAGS, str(SOURCE), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        fresh.replace(program)
    return program


if __name__ == "__main__":
    main()
