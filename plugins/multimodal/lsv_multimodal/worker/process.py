"""One media worker as its owner sees it: started, given commands, watched, ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lsv.errors import BadRequest, LsvError, PluginError, RequestFailed
from lsv.media.items import AudioChunk, Prepared
from lsv.processes.child import Child
from lsv.request.media import Modality
from lsv_multimodal.worker.messages import Command, Init, Prepare, Reply, SplitAudio

_INIT_SECONDS = 120.0
"""How long imports and the loading of the processor may take."""


class WorkerProcess:
    """One media worker. ``start`` and ``end`` are quick; all else blocks and belongs in a thread.

    It dies with the thread that called ``start``.
    """

    def __init__(self, init: Init) -> None:
        self._init = init
        self._child: Child[Command, Reply] | None = None
        self._initialized = False
        self._cores: frozenset[int] = frozenset()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        self.end()
        self._initialized = False
        self._child = Child("lsv_multimodal.worker.main", self._init, Reply, own_group=True)
        self._move()

    def stay_on(self, cores: frozenset[int]) -> None:
        """Have this process, and those that replace it, run on these cores only."""
        self._cores = cores
        self._move()

    def initialize(self) -> None:
        """Wait until the processor is loaded. Raises why it can't be; the process has ended then."""
        if self._initialized:
            return
        try:
            self._receive(_INIT_SECONDS)
        except LsvError:
            self.end()
            raise
        except TimeoutError:
            self.end()
            raise PluginError(f"the model's processor was not loaded within {_INIT_SECONDS:g} s") from None
        except (EOFError, OSError, ValueError):
            self.end()
            raise RequestFailed("the process that prepares media ended before it was ready") from None
        self._initialized = True

    def prepare(self, command: Prepare, seconds: float) -> Prepared:
        """An item, prepared within ``seconds``, else the process is killed. Raises what the process fails it with."""
        with self._watched(command.modality, seconds):
            self._send(command, seconds)
            reply = self._receive(seconds)
            assert isinstance(reply, Prepared), "an item is prepared or refused"
            return reply

    def split_audio(self, command: SplitAudio, take: Callable[[AudioChunk], object], seconds: float) -> None:
        """Have ``take`` get the chunks, each within ``seconds`` of the one before; else as ``prepare``."""
        with self._watched("audio", seconds):
            self._send(command, seconds)
            last = False
            while not last:
                reply = self._receive(seconds)
                assert isinstance(reply, AudioChunk), "audio is split or refused"
                take(reply)
                last = reply.last

    def kill(self) -> None:
        """Kill the process, if there is one; a ``prepare`` that waits for it fails."""
        if self._child is not None:
            self._child.kill()

    def end(self) -> None:
        """Kill the process and forget it; nobody may be waiting for it."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _move(self) -> None:
        if self._cores and self._child is not None:
            with suppress(OSError):  # it has ended, or may not use these cores any more
                os.sched_setaffinity(self._child.pid, self._cores)

    @contextmanager
    def _watched(self, modality: Modality, seconds: float) -> Iterator[None]:
        """Wait until the processor is loaded, then say what it means when a command comes to nothing."""
        self.initialize()
        try:
            yield
        except TimeoutError:
            self.end()
            raise BadRequest(
                f"decoding and preparing the {modality} took more than {seconds:g} s (--media-timeout)"
            ) from None
        except (EOFError, OSError, ValueError):
            self.end()
            raise BadRequest(f"the {modality} can't be decoded: it broke the process that tried") from None

    def _send(self, command: Prepare | SplitAudio, seconds: float) -> None:
        if self._child is None:
            raise EOFError
        self._child.send(command, seconds)

    def _receive(self, seconds: float) -> Reply:
        """The next reply. Raises the error of a failed command, ``TimeoutError`` or ``EOFError``."""
        if self._child is None:
            raise EOFError
        return self._child.receive(seconds)
