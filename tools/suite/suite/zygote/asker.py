"""The side of a process that starts others: it asks a zygote for those that the zygote can fork."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite.zygote.request import Request, ignored_signals, own_limits, send

_ENGINE = ("torch", "sanic", "lsv.engine.main", "lsv_runtime.worker.remote", "lsv_runtime.worker.worker")
_TEXT = ("torch", "transformers.models.auto.tokenization_auto", "transformers.processing_utils")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "lsv serve": _ENGINE,
    "lsv.engine.main": _ENGINE,
    "lsv_runtime.worker.remote": _ENGINE,
    "lsv_base.remote_code.main": _TEXT,
    "lsv_multimodal.worker.main": _TEXT,
}
"""How the commands begin that zygotes run, and what a zygote imports that is started for one of them."""

MOST_ZYGOTES = 2

_READ_AT_START = (
    "ATEN_", "CUDA_", "CURL_CA", "HF_", "HOME", "HUGGINGFACE_", "KMP_", "LANG", "LC_", "LD_", "MKL_", "MODELSCOPE_",
    "NO_COLOR", "NUMEXPR", "OMP_", "OPENBLAS_", "PATH", "PYTHON", "PYTORCH_", "RAY_", "REQUESTS_", "SANIC_", "SSL_",
    "TMPDIR", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_", "TZ", "XDG_",
)  # fmt: skip
"""How variables begin that Python and its libraries read when they start."""

_FOLDER = str(Path(__file__).parents[2])
_ZYGOTE = "import sys; sys.path.append(sys.argv[1]); from suite.zygote.main import main; main()"
_TITLE_BYTES = 4096
"""Room in a zygote's command line, where ``ps`` finds the commands of forked processes."""

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_fork_exec: Any = subprocess._fork_exec

Variables = tuple[tuple[str, str], ...]


class Zygote:
    """The way to a zygote."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._control, self._process = control, process

    def fork(self, request: Request, descriptors: list[int]) -> int | None:
        """The id of the new process; None if the zygote has ended, or if the system does not know subreapers.

        Meanwhile this process is a subreaper: orphans below it become its children. Not to be called by two threads.
        """
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1):
            return None
        try:
            send(self._control, request, descriptors)
            return int.from_bytes(self._control.recv(8), "big") or None
        except OSError:
            return None
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._control.close()
        if self._process is not None:
            self._process.wait()


def start_zygote(imports: Collection[str], commands: Collection[str], environment: Mapping[str, str]) -> Zygote:
    """Start one that is not forked from another. ``commands`` are those that zygotes beside its processes run."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, _FOLDER, str(theirs.fileno()), ",".join(imports), ",".join(commands),
             " " * _TITLE_BYTES],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=dict(environment),
        )  # fmt: skip
    return Zygote(ours, process)


class Asker:
    """Has ``subprocess`` ask zygotes for ``python -m`` and the commands above.

    A command starts cold if its process needs what a fork can't give, such as another user; and the first time that it
    comes with other variables that are read at the start. The second time starts a zygote for them.
    """

    def __init__(
        self,
        zygotes: Mapping[Variables, Zygote],
        most: int,
        commands: Mapping[str, Collection[str]] = COMMANDS,
    ) -> None:
        self._zygotes, self._most, self._commands = dict(zygotes), most, commands
        self._seen: Counter[Variables] = Counter()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._paused = False
        self._replaced = _fork_exec

    def install(self) -> None:
        self._replaced, subprocess._fork_exec = subprocess._fork_exec, self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Start all processes cold."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def close(self) -> None:
        """Undo ``install``, and end the zygotes."""
        subprocess._fork_exec = self._replaced
        while self._zygotes:
            self._zygotes.popitem()[1].close()

    def _start(self, *given: Any) -> int:
        """In place of ``subprocess._fork_exec``; returns the id of the process."""
        pid = None
        if not self._paused and os.getpid() == self._owner and (found := self._read(*given)):
            with self._lock:
                zygote = self._find_zygote(found[0])
                pid = zygote.fork(*found) if zygote else None
        return _fork_exec(*given) if pid is None else pid

    def _read(
        self, words: Any, executables: Any, close_fds: bool, kept: tuple[int, ...], folder: Any, variables: Any,
        stdin: int, _: int, __: int, stdout: int, ___: int, stderr: int, ____: int, errors: int, restore_signals: bool,
        own_session: bool, group: int, *user_and_preparation: Any,
    ) -> tuple[Request, list[int]] | None:  # fmt: skip
        """What ``_fork_exec`` is given, as a request with its descriptors; None for a command that has to start cold.

        ``errors`` is where a start that fails would say so.
        """
        words = [os.fsdecode(word) for word in words]
        folder = os.getcwd() if folder is None else os.fsdecode(folder)
        if not (
            words[:2] == [sys.executable, "-m"]
            and self._find_command(words[2:]) is not None
            and [os.fsdecode(path) for path in executables] == [sys.executable]
            and close_fds and restore_signals and os.path.isdir(folder)
            and all(value in (None, -1) for value in user_and_preparation[:5])
        ):  # fmt: skip
            return None
        inherited = [number for number in kept if number != errors]
        standard = [number if end == -1 else end for number, end in enumerate((stdin, stdout, stderr))]
        request = Request(
            words=words[2:],
            folder=folder,
            environment=dict(os.environ) if variables is None else read_assignments(variables),
            descriptors=[0, 1, 2, *inherited],
            own_session=own_session,
            group=group,
            ignored=ignored_signals(),
            cores=sorted(os.sched_getaffinity(0)),
            limits=own_limits(),
        )
        return request, standard + inherited

    def _find_command(self, words: list[str]) -> str | None:
        """One of ``commands``."""
        line = " ".join(words) + " "
        return next((command for command in self._commands if line.startswith(f"{command} ")), None)

    def _find_zygote(self, request: Request) -> Zygote | None:
        variables = read_at_start(request.environment)
        self._seen[variables] += 1
        if variables not in self._zygotes and self._seen[variables] > 1 and len(self._zygotes) < self._most:
            command = self._find_command(request.words)
            assert command is not None
            self._zygotes[variables] = start_zygote(self._commands[command], self._commands, request.environment)
        return self._zygotes.get(variables)


def read_at_start(environment: Mapping[str, str]) -> Variables:
    """The variables that have taken effect once libraries are imported."""
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START)))


def read_assignments(assignments: list[bytes]) -> dict[str, str]:
    """From ``NAME=value``."""
    return dict(os.fsdecode(assignment).split("=", 1) for assignment in assignments)
