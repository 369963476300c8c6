"""``lsv nsys [--output FOLDER] COMMAND …``: another command of lsv under Nsight Systems, which records it on demand."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from lsv.cli.context import CommandContext
from lsv.settings import environment_with
from lsv.settings.launchers import node_number
from lsv_base.errors import ConfigError, Unavailable
from lsv_base.processes.process import Process

_OPTIONS = (
    "--trace=cuda,nvtx,osrt,cudnn,cublas", "--trace-fork-before-exec=true", "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
)  # fmt: skip
_ON_DEMAND = '{"profiler": "cuda"}'
_LOOK_SECONDS = 60.0
_USAGE = "lsv nsys [--output FOLDER] COMMAND …, as in lsv nsys --output nsys-lsv serve MODEL"


def run(arguments: list[str], context: CommandContext) -> int:
    """The command's exit code. Raises ``ConfigError`` without a command or without ``nsys``."""
    folder, command = read(arguments)
    if shutil.which("nsys") is None:
        raise ConfigError(
            "nsys is not installed here: it comes with CUDA's toolkit, and as NVIDIA's nsight-systems-cli"
        )
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"profile-node{node_number()}"
    line = ["nsys", "profile", *_OPTIONS, f"--output={report}", sys.executable, "-m", "lsv", *command]
    environment = environment_with({"LSV_PROFILER_CONFIG": _ON_DEMAND})
    try:
        process = Process(line, own_group=True, environment=environment)
    except OSError as cause:
        raise Unavailable(f"nsys can't be started: {cause}") from cause
    with process, _interrupts(process):
        while (code := process.wait(_LOOK_SECONDS)) is None:
            pass
    return code


def read(arguments: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """Where the report goes, and the command. Raises ``ConfigError``."""
    folder, rest = Path(), arguments
    first, _, value = arguments[0].partition("=") if arguments else ("", "", "")
    if first in ("--output", "-o"):
        found = [value] if value else arguments[1:2]
        folder, rest = Path(*found), arguments[1 if value else 2 :]
    if not rest or rest[0].startswith("-"):
        raise ConfigError(f"nsys needs a command of lsv: {_USAGE}")
    return folder, rest


@contextmanager
def _interrupts(process: Process) -> Iterator[None]:
    """Whatever asks this process to end interrupts the command, and nsys writes its report while we wait for both."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
