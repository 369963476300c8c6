"""Carries out the orders of clients: at once, or when all requests have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from lsv.engine.engine import Engine
from lsv.engine.messages import Control, Controlled
from lsv.engine.orders.order import Drain, Order
from lsv_base.errors import EngineDied, LsvError, Unavailable

Announce = Callable[[str], None]
"""Called with what is done next, which may take as long as loading does."""
Reply = Callable[[int, Controlled], None]
"""Called with a client's number and the answer to its order."""


class Orders:
    """Carries out what clients, known by numbers, order of an engine, which is ``ready`` once it has been started.

    While an order waits until all requests have ended, no new requests are taken; after ``Drain`` none as long as a
    client is there that has ordered it.
    """

    def __init__(self, engine: Engine[Any], announce: Announce, reply: Reply) -> None:
        self._engine, self._announce, self._reply = engine, announce, reply
        self._waiting: list[tuple[int, int, Order]] = []
        """Client, id and record of each order that waits."""
        self._draining: set[int] = set()
        self.ready = False

    def check_open(self) -> None:
        """Raises ``Unavailable`` where no new requests are taken."""
        if not self.ready or self._draining:
            raise Unavailable("the engine accepts no requests now: it is loading or about to stop")
        if self._waiting:
            raise Unavailable("the engine accepts no requests now: it is about to sleep")

    def take(self, number: int, message: Control) -> None:
        """Carry out an order now, or once that can be. Raises ``EngineDied``."""
        with self._refusing(number, message.id):
            order = self._engine.orders.read(message.order, message.body)
            if not self.ready and not order.while_loading:
                raise Unavailable("the engine is loading")
            self._engine.parts.check_order(order)
            self._engine.orders.find(order).accept(order)
            if isinstance(order, Drain):
                self._draining.add(number)
            if order.when_idle:
                self._waiting.append((number, message.id, order))
            else:
                self._carry_out(number, message.id, order)

    def leave(self, number: int) -> None:
        """A client is gone. If it was lost before it could stop the engine, others are served."""
        self._draining.discard(number)
        self._waiting = [one for one in self._waiting if one[0] != number or not isinstance(one[2], Drain)]

    def answer_waiting(self) -> None:
        """Carry out the orders that wait until all requests have ended, if they have. Raises ``EngineDied``."""
        if not self._waiting or self._engine.has_work:
            return
        waiting, self._waiting = self._waiting, []
        for number, id, order in waiting:
            with self._refusing(number, id):
                self._carry_out(number, id, order)

    def _carry_out(self, number: int, id: int, order: Order) -> None:
        """Carry out an order, and reply now or when what it has begun ends."""

        def answer(ended: Future[None]) -> None:
            error = ended.exception()
            self._reply(number, Controlled(id, error.record() if isinstance(error, LsvError) else None))

        if order.announces:
            self._announce(order.announces)
        ending = self._engine.orders.find(order).carry_out(order)
        if ending is None:
            self._reply(number, Controlled(id))
        else:
            ending.add_done_callback(answer)

    @contextmanager
    def _refusing(self, number: int, id: int) -> Iterator[None]:
        """Reply with the error that refuses an order."""
        try:
            yield
        except EngineDied:
            raise
        except LsvError as error:
            self._reply(number, Controlled(id, error.record()))
