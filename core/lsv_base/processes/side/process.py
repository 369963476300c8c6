"""The owner's side of a side process: starts it, sends commands, limits their time, and explains how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Literal

import msgspec

from lsv_base.errors import ConfigError, LsvError, PluginError, RequestFailed
from lsv_base.processes.child import Child
from lsv_base.processes.confinement.terms import Measure, Terms
from lsv_base.processes.environment import harmless_environment
from lsv_base.processes.side.messages import OutOfMemory, Ready
from lsv_base.processes.wire import Received, Sent

_START_SECONDS = 120.0
"""How long imports and loading may take."""
_END_SECONDS = 1.0
"""How long a process that closed its channel may take to exit."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1, because libraries would start threads during import, and Landlock does not confine those threads."""

_ENDS = {
    signal.SIGSYS: "tried a system call that it may not make",
    signal.SIGXCPU: "used up its processor time",
    signal.SIGKILL: "was killed, perhaps because memory ran out",
    signal.SIGXFSZ: "wrote a file",
}


class Broken(Exception):
    """A command ended its process. ``how`` is a predicate for messages."""

    def __init__(self, reason: Literal["time", "memory", "crash"], how: str) -> None:
        super().__init__(how)
        self.reason, self.how = reason, how


class Kind(msgspec.Struct, frozen=True):
    """A kind of side process: ``what`` it does, for messages, and the module it runs."""

    what: str
    module: str
    receives: Any
    """The union of its replies."""
    terms: Terms


class SideProcess(Generic[Sent, Received]):
    """One side process. ``start`` and ``end`` return quickly; other methods block, so call them in a thread.

    ``init`` is the first command. The process ends with the thread that called ``start``.
    """

    def __init__(self, kind: Kind, init: Sent, inherited: Sequence[int] = ()) -> None:
        """``inherited`` are descriptors that the process inherits."""
        self._kind, self._init, self._inherited = kind, init, tuple(inherited)
        self._child: Child[Any, Any] | None = None
        self._ready = False
        self._cores: frozenset[int] = frozenset()
        self.measures: tuple[Measure, ...] = ()
        """The confinement measures, known after ``initialize``."""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        self.end()
        self._ready = False
        receives = self._kind.receives | Ready | OutOfMemory
        environment = harmless_environment(dict.fromkeys(_THREADS, "1"))
        self._child = Child(
            self._kind.module,
            self._kind.terms,
            receives,
            inherited=self._inherited,
            own_group=True,
            environment=environment,
        )
        with suppress(OSError):  # it ended at once; the next receive reports that
            self._child.send(self._init)
        self._move()

    def stay_on(self, cores: frozenset[int]) -> None:
        """Run this process, and processes that replace it, on these cores only."""
        self._cores = cores
        self._move()

    def initialize(self) -> None:
        """Wait until the process is loaded and confined. On an error, ends the process and raises."""
        if self._ready:
            return
        try:
            ready = self._receive(_START_SECONDS)
        except LsvError:
            self.end()
            raise
        except TimeoutError:
            self.end()
            raise PluginError(f"the process that {self._kind.what} was not ready in {_START_SECONDS:g} s") from None
        except (EOFError, OSError, ValueError):
            how = self._how_it_ended()
            raise RequestFailed(f"the process that {self._kind.what} {how} before it was ready") from None
        assert isinstance(ready, Ready), "a side process is ready or refuses"
        self.measures = ready.measures
        self._check_terms()
        self._ready = True

    def ask(self, command: Sent, seconds: float) -> Received:
        """The reply to a command. The process is killed after ``seconds``.

        Raises the command's error, ``Broken`` if the command ended the process, and as ``initialize``.
        """
        with self._watched(seconds) as child:
            child.send(command, seconds)
            reply: Received = self._receive(seconds)
            return reply

    def ask_all(self, command: Sent, take: Callable[[Received], bool], seconds: float) -> None:
        """As ``ask``, but pass replies to ``take``, each within ``seconds``, until ``take`` returns False."""
        with self._watched(seconds) as child:
            child.send(command, seconds)
            while take(self._receive(seconds)):
                pass

    def kill(self) -> None:
        """Kill the process, if there is one; a command in progress fails. Returns at once."""
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and forget it. Only call this while no command is running."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _move(self) -> None:
        if self._cores and self._child is not None:
            with suppress(OSError):  # it has ended, or may no longer use these cores
                os.sched_setaffinity(self._child.pid, self._cores)

    def _check_terms(self) -> None:
        """Raises ``ConfigError`` if the operator requires full confinement and a measure is missing."""
        missing = [f"{measure.name} ({measure.found})" for measure in self.measures if not measure.held]
        if missing and self._kind.terms.mode == "require":
            self.end()
            raise ConfigError(
                f"--confinement require: the process that {self._kind.what} can't be fully confined: "
                f"{'; '.join(missing)}. Make these measures available to the server, or use --confinement auto",
                param="confinement",
            )

    @contextmanager
    def _watched(self, seconds: float) -> Iterator[Child[Any, Any]]:
        """Wait until the process is ready, then turn failures of a command into ``Broken``."""
        self.initialize()
        assert self._child is not None, "it is ready"
        try:
            yield self._child
        except TimeoutError:
            self.end()
            raise Broken("time", f"took more than {seconds:g} s") from None
        except MemoryError:
            self.end()
            raise Broken("memory", f"took more than {self._kind.terms.memory >> 20} MiB of memory") from None
        except (EOFError, OSError, ValueError):
            raise Broken("crash", self._how_it_ended()) from None

    def _receive(self, seconds: float) -> Any:
        """The next reply. Raises the error of a failed command, ``TimeoutError``, ``MemoryError`` or ``EOFError``."""
        if self._child is None:
            raise EOFError
        reply = self._child.receive(seconds)
        if isinstance(reply, OutOfMemory):
            raise MemoryError
        return reply

    def _how_it_ended(self) -> str:
        """A predicate for messages that says how the process ended. Forgets the process."""
        if self._child is None:
            return "ended"
        code = self._child.wait(_END_SECONDS)
        words = _ENDS.get(signal.Signals(-code)) if code is not None and -code in set(signal.Signals) else None
        how = words or (self._child.how_it_ended() if code is not None else "closed its channel")
        self.end()
        return how
