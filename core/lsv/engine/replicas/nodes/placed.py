"""Node 0's side where its replicas have no machines of their own yet: somebody finds some, and they join from there."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Self

import msgspec

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.charge import Charge
from lsv.engine.replicas.nodes.line import Line, cancel, stream_over
from lsv.engine.replicas.nodes.placement import Begin, FromPlacement, GivenUp, Here, Seek, ToPlacement
from lsv.engine.replicas.nodes.reception import Reception
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.supervision.gang import Gang
from lsv.engine.supervision.supervisor import STOP_SECONDS, RestartPolicy
from lsv.settings.cluster_key import read_cluster_key
from lsv_base.errors import EngineDied, LsvError, from_record
from lsv_base.processes.child import Child

log = logging.getLogger(__name__)

_END_SECONDS = 2 * STOP_SECONDS
"""What the process gets to end by itself, since it waits for engines to."""
_KEY = 32
"""Bytes of the secret that is made for each run where there is none, so that nobody has to hand one out."""


class Placed:
    """A ``Reception`` and the process that places the engines of ``stand_ins``; used as that is.

    Returns at once; what keeps replicas from being placed becomes the end of their engines. When the process is lost,
    all are placed anew, as often as ``restarts`` allows.
    """

    def __init__(
        self,
        config: EngineConfig,
        stand_ins: Sequence[StandIn],
        *,
        log_level: str,
        restarts: Callable[[], RestartPolicy],
        drain: float,
        gang: Gang | None = None,
    ) -> None:
        """With a ``gang``, where one replica is given up there is none."""
        assert config.replica_nodes is not None, "replicas that somebody places"
        self._config, self._nodes = config, config.replica_nodes
        self._replicas = {one.number: one for one in stand_ins}
        self._log_level, self._restarts, self._drain, self._gang = log_level, restarts, drain, gang

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel([self._task])

    async def _keep(self) -> None:
        policy = self._restarts()
        while True:
            try:
                await self._run()
            except Exception as cause:
                error = cause if isinstance(cause, LsvError) else EngineDied(f"replicas can't be placed: {cause!r}")
            came = any(one.comings for one in self._replicas.values())
            delay = policy.delay(time.monotonic()) if came else None
            log.error("%s", error.message if delay is None else f"{error.message}; placing all anew in {delay:g} s")
            for one in self._replicas.values():
                (one.give_up if delay is None else one.detach)(error)
            if delay is None:
                return
            await asyncio.sleep(delay)

    async def _run(self) -> NoReturn:
        """Raises what has kept replicas from being placed, ``EngineDied`` when the process is lost."""
        child: Child[ToPlacement, FromPlacement] = Child(
            "lsv.engine.replicas.nodes.placement", Seek(self._config, self._log_level), FromPlacement, own_group=True
        )
        try:
            line: Line[ToPlacement, FromPlacement] = Line(await stream_over(child.channel.end), FromPlacement)
            try:
                await self._place(line)
            finally:
                line.close()
        except (EOFError, OSError, ValueError) as cause:
            await asyncio.to_thread(child.end, _END_SECONDS)
            how = child.how_it_ended()
            raise EngineDied(f"the process that places replicas by {self._nodes.placer} {how}") from cause
        finally:
            await asyncio.to_thread(child.end, _END_SECONDS)

    async def _place(self, line: Line[ToPlacement, FromPlacement]) -> NoReturn:
        here = await line.receive()
        assert isinstance(here, Here), "the first message is Here"
        key, policy = read_cluster_key() or secrets.token_hex(_KEY).encode(), self._restarts()
        nodes = msgspec.structs.replace(self._nodes, address=self._nodes.address or here.address)
        config = msgspec.structs.replace(self._config, replica_nodes=nodes)
        async with Reception(config, tuple(self._replicas.values()), key, self._gang):
            there = msgspec.structs.replace(config, replica_nodes=msgspec.structs.replace(nodes, headless=True))
            charge = Charge(
                config=there, key=key, log_level=self._log_level, restarts=(policy.limit, policy.window),
                drain=self._drain,
            )  # fmt: skip
            line.send(Begin(charge))
            while True:
                gone = await line.receive()
                assert isinstance(gone, GivenUp), "all further messages are GivenUp"
                log.error("replica %d is given up: %s", gone.replica, gone.error.message)
                self._replicas[gone.replica].give_up(from_record(gone.error))
                if self._gang is not None:
                    self._gang.disband()
