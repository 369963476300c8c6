"""The orders of clients: carried out at once, or when all requests have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lsv.engine.engine import Engine
from lsv.engine.messages import Control, Controlled
from lsv.engine.orders.profiles import order_profile
from lsv.errors import BadRequest, EngineDied, LsvError, Unavailable

KNOWN = (
    "reset_prefix_cache", "drain", "sleep", "wake_up", "load_adapter", "unload_adapter", "start_profile",
    "stop_profile",
)  # fmt: skip

Announce = Callable[[str], None]
"""Called with what is done next, which may take as long as loading does."""
Reply = Callable[[int, Controlled], None]
"""Called with a client's number and the answer to its order."""


class Orders:
    """Carries out what clients, known by numbers, order of an engine, which is ``ready`` once it has been started.

    ``drain`` and ``sleep`` wait until all requests have ended, and no new ones are taken meanwhile; after ``drain``
    none as long as a client is there that has ordered it.
    """

    def __init__(self, engine: Engine[Any], announce: Announce, reply: Reply) -> None:
        self._engine, self._announce, self._reply = engine, announce, reply
        self._waiting: list[tuple[int, Control]] = []
        self._draining: set[int] = set()
        self.ready = False

    def check_open(self) -> None:
        """Raises ``Unavailable`` where no new requests are taken."""
        if not self.ready or self._draining:
            raise Unavailable("the engine accepts no requests now: it is loading or about to stop")
        if self._waiting:
            raise Unavailable("the engine accepts no requests now: it is about to sleep")

    def take(self, number: int, order: Control) -> None:
        """Carry out an order now, or once that can be. Raises ``EngineDied``."""
        if order.order == "drain":
            self._draining.add(number)
            self._waiting.append((number, order))
        else:
            self._answer(number, order, self._begin)

    def leave(self, number: int) -> None:
        """A client is gone. If it was lost before it could stop the engine, others are served."""
        self._draining.discard(number)
        self._waiting = [one for one in self._waiting if one[0] != number or one[1].order != "drain"]

    def answer_waiting(self) -> None:
        """Carry out the orders that wait until all requests have ended, if they have. Raises ``EngineDied``."""
        if not self._waiting or self._engine.has_work:
            return
        waiting, self._waiting = self._waiting, []
        for number, order in waiting:
            self._answer(number, order, self._finish)

    def _answer(self, number: int, order: Control, carry_out: Callable[[int, Control], bool]) -> None:
        """Reply if an order was carried out, or refused."""
        try:
            if carry_out(number, order):
                self._reply(number, Controlled(order.id))
        except EngineDied:
            raise
        except LsvError as error:
            self._reply(number, Controlled(order.id, error.record()))

    def _finish(self, number: int, order: Control) -> bool:
        """Carry out an order that has waited."""
        if order.order == "sleep":
            self._announce("falling asleep")
            self._engine.sleep.sleep(_level(order.arguments))
        return True

    def _begin(self, number: int, order: Control) -> bool:
        """Whether the order is carried out; otherwise it will be answered later."""
        engine, name = self._engine, order.order
        if name == "reset_prefix_cache":
            if self.ready:  # while loading, nothing is cached
                engine.reset_prefix_cache()
            return True
        if name not in KNOWN:
            raise BadRequest(f"unknown order {name!r}: the engine knows {', '.join(KNOWN)}")
        if not self.ready:
            raise Unavailable("the engine is loading")
        if name == "wake_up":
            self._announce("waking up")
            engine.sleep.wake_up([tag for tag in order.arguments.get("tags", "").split(",") if tag])
            return True
        if name in ("start_profile", "stop_profile"):
            self._announce("profiling")
            order_profile(engine, name)
            return True
        if name == "sleep":
            mode = order.arguments.get("mode", "abort")
            engine.sleep.check_allowed(_level(order.arguments), mode)
            if mode == "abort":
                engine.refuse_all(Unavailable("the engine was put to sleep while it answered"))
            self._waiting.append((number, order))
            return False
        engine.sleep.check_awake()
        engine.adapters.carry_out(name, order.arguments, lambda error: self._reply(number, Controlled(order.id, error)))
        return False


def _level(arguments: Mapping[str, str]) -> int:
    """0, which there is not, for what is no number."""
    level = arguments.get("level", "1")
    return int(level) if level.isdecimal() and len(level) == 1 else 0
