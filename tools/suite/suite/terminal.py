"""A command in a pseudo-terminal, as a person uses it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

from lsv.settings import environment_with

_WHERE = "\x1b[6n"
"""A program asks for the cursor's place, and waits for the answer."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[>=]|\r")


class Terminal:
    """``lsv`` with ``arguments``, under a pseudo-terminal that it controls."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lsv", *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=environment_with({"TERM": "xterm", **environment}),
        )  # fmt: skip
        os.close(slave)
        self._seen = ""
        self._read_to = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Type keys: ``\\r`` is Enter, ``\\x03`` Ctrl-C."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout: float = 60.0) -> str:
        """Wait until ``text`` appears after the previous match; returns the output so far."""
        end = time.monotonic() + timeout
        while text not in (shown := _CONTROL.sub("", self._seen)[self._read_to :]):
            assert time.monotonic() < end, f"{text!r} did not come, only {shown!r}"
            self._read()
        found = shown.index(text) + len(text)
        self._read_to += found
        return shown[:found]

    def end(self, timeout: float = 30.0) -> int:
        """Wait for the command's end; returns its exit code."""
        end = time.monotonic() + timeout
        while self._process.poll() is None and time.monotonic() < end:
            self._read()
        return self._process.wait(1.0)

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.05)[0]:
            try:
                data = os.read(self._master, 1 << 16).decode(errors="replace")
            except OSError:  # the command has ended
                return
            if _WHERE in data:
                os.write(self._master, b"\x1b[1;1R")
            self._seen += data
