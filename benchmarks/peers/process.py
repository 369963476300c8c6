"""An offline engine in a process of its own, asked for one workload after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from setup import Setup
from workloads import Workload

from lsv_bench.memory import measure_memory

SCRIPT = Path(__file__).parent / "offline.py"
END_SECONDS = 30.0

Record = dict[str, Any]


def run_offline(setup: Setup, workloads: Sequence[Workload], seed: str, log: Path) -> Iterator[Record]:
    """A record for each workload; what the engine prints goes to ``log``."""
    left = [one.name for one in workloads]
    command = [*setup.command(("{python}",)), str(SCRIPT), json.dumps(_task(setup))]
    with log.open("w", encoding="utf-8") as output, _child(command, output) as process:
        start = _answer(process)
        while start is not None and left:
            figures = _ask(process, f"{left[0]} {seed}\n")
            if figures is None:
                break
            # the child now waits for its next order, so this is what it keeps
            yield {"workload": left.pop(0), **start, **figures, **measure_memory(process.pid)}
    yield from ({"workload": name, "error": f"the engine ended; see {log.name}"} for name in left)


def _task(setup: Setup) -> Record:
    options = dict(setup.engine.options)
    if "command" in options:
        options["command"] = setup.fill(options["command"])
    return {
        "adapter": setup.engine.adapter,
        "model": str(setup.model),
        "threads": setup.threads,
        "vocabulary": setup.shape.vocabulary,
        "options": options,
        "room": vars(setup.room),
    }


@contextmanager
def _child(command: Sequence[str], output: TextIO) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which ends with the block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, process_group=0
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ask(process: subprocess.Popen[str], order: str) -> Record | None:
    assert process.stdin is not None
    try:
        process.stdin.write(order)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    return _answer(process)


def _answer(process: subprocess.Popen[str]) -> Record | None:
    """The next record of a child; None when it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found: Record | None = json.loads(line) if line else None
    return found
