"""A command as a child process: started, watched, ended, and in words how it ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

log = logging.getLogger(__name__)

DUMP_SIGNAL = signal.SIGUSR1
_DUMP_SECONDS = 0.2
_KILL_SECONDS = 10.0


class Process:
    """A command that runs as a child of this process, with no standard input. A ``with`` block ends it.

    ``inherited`` are descriptors that it keeps. With ``own_group`` it leads a process group of its own: an
    interrupt of the terminal does not reach it, and signals go to everything it has started. ``stdout`` and ``stderr``
    as in ``subprocess.Popen``; ``environment`` in place of this process's own. Raises ``OSError`` when the command
    can't be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        inherited: Sequence[int] = (),
        own_group: bool = False,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._own_group = own_group
        self._popen = subprocess.Popen(
            command,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            process_group=0 if own_group else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for the signal that killed it; None while it runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        return self.code is None

    def wait(self, seconds: float) -> int | None:
        """The exit code once it has ended; None when it still runs after ``seconds``."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        """To the process, or to all of its group where it has its own. Does nothing when it has ended."""
        if not self._own_group:
            self._popen.send_signal(number)
        elif self.running:
            with suppress(ProcessLookupError):  # another thread has seen its end since
                os.killpg(self.pid, number)

    def dump_stacks(self) -> None:
        """Have a process that hangs show where it stands, as far as it ``dump_stacks_on_request``; others end."""
        self.send_signal(DUMP_SIGNAL)
        self.wait(_DUMP_SECONDS)

    def kill(self) -> None:
        """SIGKILL; returns when it has ended, or where a driver does not let go of it, after ten seconds."""
        self.send_signal(signal.SIGKILL)
        if self.wait(_KILL_SECONDS) is None:
            log.error(
                "process %d has been killed and does not end: it hangs in the kernel, most likely in a driver", self.pid
            )

    def end(self, seconds: float = 0.0) -> None:
        """Give it ``seconds`` to end by itself, then kill it. May be called again."""
        if self.wait(seconds) is None:
            self.kill()

    def how_it_ended(self) -> str:
        """A predicate for messages: "was killed by signal 9", "ended with exit code 1", "does not end"."""
        code = self.code
        if code is None:
            return "does not end"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
