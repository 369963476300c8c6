"""Replacing the processes of all replicas, one after the other, while the others answer."""

from __future__ import annotations

import asyncio
import logging

from lsv.engine.orders.order import Drain
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import Supervisor
from lsv_base.errors import LsvError

log = logging.getLogger(__name__)

_POLL = 0.05
"""Seconds between looks at whether a process has ended."""


class Renewal:
    """Drains each replica and starts it anew, when it is asked for."""

    def __init__(self, clients: tuple[SocketClient, ...], supervisors: Supervisors, *, drain: float) -> None:
        """Requests of a replica get ``drain`` seconds to end."""
        self._each = tuple(zip(clients, supervisors.replicas, strict=True))
        self._drain = drain
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Returns at once; nothing happens where it is under way, nor where no replica can do without the others or
        without machines that end with its engine.
        """
        config = self._each[0][0].config
        if config.topology.shares_experts:
            log.warning("the replicas are not replaced: they share experts, so none answers without the others")
            return
        if config.nodes is not None:
            log.warning("the replicas are not replaced: their machines end with the engines")
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Returns when all have been replaced, or one has not come back: then the others stay as they are."""
        for number, (client, supervisor) in enumerate(self._each):
            log.info("replica %d is drained, and then replaced", number)
            try:
                await self._renew(client, supervisor)
            except LsvError as error:
                log.error("replica %d is not there, and the others are not replaced: %s", number, error.message)
                return
        log.info("all replicas have been replaced")

    async def _renew(self, client: SocketClient, supervisor: Supervisor | StandIn) -> None:
        draining = asyncio.create_task(client.order(Drain()))  # the engine gets the order even if no time is left
        try:
            done, _ = await asyncio.wait([draining], timeout=self._drain)
            for one in done:
                one.result()
            if not done:
                log.warning("some requests have not ended in %g s: they fail", self._drain)
        finally:
            draining.cancel()
        supervisor.renew()
        while client.status.state == "draining":
            await asyncio.sleep(_POLL)
        await client.ready()
