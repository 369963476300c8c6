"""The process that runs a checkpoint's code as its owner sees it: asked from any thread, replaced when it breaks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lsv_base.errors import CheckpointError, RequestFailed
from lsv_base.processes.confinement.terms import Mode, Terms
from lsv_base.processes.side.process import Broken, Kind, SideProcess
from lsv_base.remote_code.messages import Begin, Command, Reply

SECONDS = 60.0
"""How long a command may take: loading a large vocabulary takes the longest."""
MEMORY = 4 << 30
"""Bytes that the code may add to what the process has loaded."""


class CodeProcess:
    """Runs ``reference``, a class of a checkpoint's folder, and keeps it to its ``mode`` of confinement.

    Its modules are in the same folder, or in that of ``code``.

    Commands take turns, in a thread of its own: the process lives as long as that, and so as long as this object.
    """

    def __init__(self, folder: str, reference: str, mode: Mode, code: str = "") -> None:
        self._reference = reference
        kind = Kind(
            f"runs the checkpoint's {reference}", "lsv_base.remote_code.main", Reply, Terms(MEMORY, SECONDS, mode)
        )
        self._process: SideProcess[Any, Any] = SideProcess(kind, Begin(folder, reference, code or folder))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="code")
        self._closed = False

    def ask(self, command: Command) -> Any:
        """The reply. Raises ``CheckpointError`` for what the code raises, ``RequestFailed`` where it costs the process
        its life, and as ``SideProcess.initialize``.
        """
        try:
            return self._thread.submit(self._ask, command).result()
        except Broken as broken:
            raise RequestFailed(f"the checkpoint's own code {self._reference} was stopped: it {broken.how}") from None

    def close(self) -> None:
        """End the process; waiting commands fail. Returns at once. May be called from any thread, and repeatedly."""
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        self._thread.submit(self._process.end)  # runs after the command in progress, which fails now
        self._thread.shutdown(wait=False)

    def _ask(self, command: Command) -> Any:
        if self._closed:
            raise RequestFailed(f"the process that runs the checkpoint's {self._reference} was closed")
        if not self._process.running:
            try:
                self._process.start()
            except OSError as cause:
                raise CheckpointError(f"the process for the checkpoint's code can't be started: {cause}") from None
        return self._process.ask(command, SECONDS)
