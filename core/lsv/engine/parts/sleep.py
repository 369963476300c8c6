"""Sleep: an engine gives its memory back, and takes it again."""

from __future__ import annotations

import logging
from collections.abc import Collection

from lsv.engine.executor import ReleaseMemory, RestoreMemory
from lsv.engine.messages import Asleep
from lsv.engine.orders.order import Handler, Order
from lsv.engine.orders.sleep import LEVELS, MODES, PARTS, Sleep, WakeUp
from lsv.engine.parts.part import Host, Part, PartContext
from lsv.request.group import RequestGroup
from lsv_base.errors import BadRequest, Unavailable

log = logging.getLogger(__name__)


def make_sleep(context: PartContext) -> SleepPart:
    """The part that sleeps, or that refuses to by name."""
    return SleepPart(context.engine)


class SleepPart(Part):
    """Gives the engine's memory back when it is told to, and lets nothing in until it is awake again."""

    name = "sleep"

    def __init__(self, engine: Host) -> None:
        self._engine = engine
        self._level = 0
        self.asleep: tuple[str, ...] = ()
        """The parts of its memory, of ``PARTS``, that the engine has given back; empty while it is awake."""
        self.orders = {
            Sleep: Handler(lambda order: self.sleep(order.level), self._accept),
            WakeUp: Handler(lambda order: self.wake_up(order.tags)),
        }

    def notice(self) -> Asleep:
        return Asleep(self.asleep)

    def check_order(self, order: Order) -> None:
        """Raises ``Unavailable`` for an order that a sleeping engine does not take."""
        if not order.while_asleep:
            self._check_awake()

    def open(self, group: RequestGroup) -> bool:
        """Raises ``Unavailable`` while the engine sleeps."""
        self._check_awake()
        return False

    def _check_awake(self) -> None:
        if self.asleep:
            raise Unavailable(f"the engine sleeps ({', '.join(self.asleep)}): wake it up with POST /wake_up first")

    def sleep(self, level: int) -> None:
        """Give memory back; all requests must have ended. Nothing happens to what sleeps as deeply already.

        Raises ``BadRequest`` where sleeping is not enabled, and for a level that there is not.
        """
        self.check_allowed(level)
        if self.asleep == PARTS and level <= self._level:
            return
        if not self.asleep:
            self._engine.save_cached()
        self._engine.forget_cached(host=level > 1)
        self._engine.control(ReleaseMemory(level))
        self._level = max(level, self._level) if "weights" in self.asleep else level
        self.asleep = PARTS
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
        wanted = tuple(part for part in self.asleep if not tags or part in tags)
        if self._level > 1 and wanted == ("kv_cache",) and "weights" in self.asleep:
            raise BadRequest("tags: at level 2 the weights wake up first: their size is not known", param="tags")
        if not wanted:
            return
        self._engine.control(RestoreMemory(wanted))
        self.asleep = tuple(part for part in self.asleep if part not in wanted)
        log.info("the engine woke up%s", f", but for {', '.join(self.asleep)}" if self.asleep else "")

    def _accept(self, order: Sleep) -> None:
        """Refuse what can't be, and end the requests that are not waited for."""
        self.check_allowed(order.level, order.mode)
        if order.mode == "abort":
            self._engine.refuse_all(Unavailable("the engine was put to sleep while it answered"))

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
        if not self._engine.config.sleep_mode:
            raise BadRequest("sleeping is not enabled: start with --enable-sleep-mode")
