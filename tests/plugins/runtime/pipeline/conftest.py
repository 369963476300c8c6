"""Ranks that are threads of the test's own process: what executor and workers say to each other is what it always is,
and no process has to start.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

import lsv_cpu.native
from lsv.config import EngineConfig
from lsv_runtime.worker import remote
from lsv_runtime.worker.channel import Start
from lsv_runtime.worker.processes import ProcessesExecutor, RankLink


class RankThread(RankLink):
    """A worker that is a thread."""

    def __init__(self, start: Start) -> None:
        mine, theirs = socket.socketpair()
        super().__init__(start.rank, mine)
        self._thread = Thread(target=_serve, args=(theirs,), daemon=True)
        self._thread.start()
        self.send(start)

    def end(self, seconds: float = 0.0) -> None:
        super().end(seconds)
        self._thread.join(seconds)


def _serve(end: socket.socket) -> None:
    with end, suppress(OSError):  # where several fail, the executor is gone when the second one says so
        remote.answer(end)


@pytest.fixture
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without native code, which has one team of threads a process."""

    def launch(executor: ProcessesExecutor, config: EngineConfig) -> Iterator[RankLink]:
        folder = tmp_path_factory.mktemp("ranks")
        for rank in range(config.topology.ranks):
            yield RankThread(Start(config, rank, str(folder / "meeting")))

    monkeypatch.setattr(ProcessesExecutor, "launch", launch)
    monkeypatch.setattr(lsv_cpu.native, "library", lambda: None)
