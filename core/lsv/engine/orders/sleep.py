"""Orders to sleep and to wake up: an engine gives its memory back, and takes it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from lsv.config import EngineConfig
from lsv.engine.executor import ReleaseMemory, RestoreMemory
from lsv.engine.orders.order import Handler, Handlers, Order
from lsv.errors import BadRequest, LsvError, Unavailable
from lsv.processes.orders import WorkerOrder

log = logging.getLogger(__name__)

PARTS = ("weights", "kv_cache")
"""What sleeps, by the names that vLLM gives them; also the order in which they wake up."""
LEVELS = (1, 2)
"""At 1 the host keeps the weights, and what it has of the KV cache; at 2 they are read from the checkpoint again."""

MODES = ("abort", "wait")
"""What becomes of requests that are under way: they end with an error, or are waited for."""


class Sleep(Order, frozen=True):
    """Give back the memory of the KV cache and of the weights. ``BadRequest`` refuses it if sleeping is not enabled."""

    announces = "falling asleep"
    when_idle = True
    while_asleep = True

    level: int = 1
    """One of ``LEVELS``."""

    mode: str = "abort"
    """One of ``MODES``."""


class WakeUp(Order, frozen=True):
    """Take memory again. ``Unavailable`` refuses it if too little is free."""

    announces = "waking up"
    while_asleep = True
    audience = "alive"

    tags: tuple[str, ...] = ()
    """The parts that wake up, of ``PARTS``; all if empty."""


Control = Callable[[WorkerOrder], object]
"""Carries out an order on every worker, once nothing is in flight."""


class SleepState:
    """The parts of an engine's memory that have been given back, and the handlers of the orders that change them."""

    def __init__(
        self,
        config: EngineConfig,
        control: Control,
        *,
        forget: Callable[[bool], None],
        refuse_all: Callable[[LsvError], None],
    ) -> None:
        """``forget`` empties the books of what the workers cache; given True also of what host memory does.

        ``refuse_all`` ends all requests with an error.
        """
        self._enabled = config.sleep_mode
        self._control, self._forget, self._refuse_all = control, forget, refuse_all
        self._level = 0
        self.parts: tuple[str, ...] = ()
        """Those that sleep; empty while the engine is awake."""

    @property
    def orders(self) -> Handlers:
        return {
            Sleep: Handler(lambda order: self.sleep(order.level), self._accept),
            WakeUp: Handler(lambda order: self.wake_up(order.tags)),
        }

    def check_awake(self) -> None:
        """Raises ``Unavailable`` while the engine sleeps."""
        if self.parts:
            raise Unavailable(f"the engine sleeps ({', '.join(self.parts)}): wake it up with POST /wake_up first")

    def sleep(self, level: int) -> None:
        """Give memory back; all requests must have ended. Nothing happens to what sleeps as deeply already.

        Raises ``BadRequest`` where sleeping is not enabled, and for a level that there is not.
        """
        self.check_allowed(level)
        if self.parts == PARTS and level <= self._level:
            return
        self._forget(level > 1)
        self._control(ReleaseMemory(level))
        self._level = max(level, self._level) if "weights" in self.parts else level
        self.parts = PARTS
        log.info("the engine sleeps at level %d", level)

    def wake_up(self, tags: Collection[str] = ()) -> None:
        """Take memory again for parts, or for all of them; what is awake stays so.

        Raises ``BadRequest`` where sleeping is not enabled and for parts that there are not, ``Unavailable`` where
        there is too little memory, ``CheckpointError`` for a checkpoint that is not the same any more.
        """
        self._check_enabled()
        unknown = sorted(set(tags) - set(PARTS))
        if unknown:
            raise BadRequest(f"tags: {', '.join(unknown)}: there are {' and '.join(PARTS)}", param="tags")
        wanted = tuple(part for part in self.parts if not tags or part in tags)
        if self._level > 1 and wanted == ("kv_cache",) and "weights" in self.parts:
            raise BadRequest("tags: at level 2 the weights wake up first: their size is not known", param="tags")
        if not wanted:
            return
        self._control(RestoreMemory(wanted))
        self.parts = tuple(part for part in self.parts if part not in wanted)
        log.info("the engine woke up%s", f", but for {', '.join(self.parts)}" if self.parts else "")

    def _accept(self, order: Sleep) -> None:
        """Refuse what can't be, and end the requests that are not waited for."""
        self.check_allowed(order.level, order.mode)
        if order.mode == "abort":
            self._refuse_all(Unavailable("the engine was put to sleep while it answered"))

    def check_allowed(self, level: int, mode: str = "abort") -> None:
        """Raises ``BadRequest`` where the engine can't be put to sleep at a level, or in a mode."""
        self._check_enabled()
        if level not in LEVELS:
            raise BadRequest(
                "level must be 1 (the host keeps the weights) or 2 (they are read again on waking)", param="level"
            )
        if mode not in MODES:
            raise BadRequest(f"mode must be one of {', '.join(MODES)}, got {mode!r}", param="mode")

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise BadRequest("sleeping is not enabled: start with --enable-sleep-mode")
