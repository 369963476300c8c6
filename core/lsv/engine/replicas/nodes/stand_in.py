"""What clients find in place of an engine on another machine: a folder like a supervisor's, with state and socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lsv.engine.replicas.nodes.line import Stream, cancel, in_loop, splice, stream_over
from lsv.engine.replicas.nodes.messages import Dial, Fall, FromNode0, Renew, Together
from lsv.engine.supervision.gang import Gang
from lsv.engine.supervision.state import Supervision, publish, socket_in
from lsv.processes.nodes.door import Guest
from lsv_base.errors import EngineDied, ErrorRecord, LsvError
from lsv_base.processes.folder import PrivateFolder

_DIAL_SECONDS = 15.0
"""What a machine gets to connect a client to its engine."""

Send = Callable[[FromNode0], None]


class StandIn:
    """Hands clients on to the engine of replica ``number``, wherever that is, and tells them of its state.

    It has the place of a ``Supervisor``, and does what that does by asking the machine which has the engine. All but
    ``stop`` must be called in the event loop that serves it.
    """

    def __init__(self, number: int, gang: Gang | None = None) -> None:
        """With a ``gang``, the engine starts and ends with those of the gang's supervisors."""
        self.number, self._gang = number, gang
        self._folder = PrivateFolder()
        self._run = 0
        self._ended = False
        self._send: Send | None = None
        self.comings = 0
        """How often a machine has come that has the engine."""
        self._callers: deque[asyncio.Future[Guest]] = deque()
        """Clients that wait for a connection to the engine."""
        self._relays: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._publish("down", None)

    @property
    def address(self) -> Path:
        """The socket that clients connect to; the same whatever becomes of the engine."""
        return socket_in(self._folder.path)

    def start(self) -> None:
        """The engine is started by its own machine."""

    def renew(self) -> None:
        """Have another process take the engine's place; returns at once."""
        self._order(Renew(self.number))

    def _order(self, order: FromNode0) -> None:
        """Tell the machine that has the engine, if there is one."""
        if self._send is not None:
            self._send(order)

    def ask_to_stop(self) -> None:
        """Its machine is told by the end of the server."""

    def stop(self, seconds: float = 0.0) -> None:
        """Remove the socket. May be called again."""
        self._folder.remove()

    async def open(self) -> None:
        """Take connections of clients."""
        self._server = await asyncio.start_unix_server(self._take, str(self.address))
        if self._gang is not None:
            self._gang.follow(in_loop(self.give_up))

    async def close(self) -> None:
        """Take no more, and end those there are."""
        if self._server is not None:
            self._server.close()
        await cancel(self._relays)

    # What its machine says and does

    def attach(self, send: Send) -> None:
        """A machine has the engine, and hears of clients by ``send``. The state it is in follows."""
        self._send = send
        self.comings += 1

    def detach(self, why: LsvError) -> None:
        """The machine is lost, and with it what clients have asked of the engine."""
        self._send = None
        self._publish("down", why.record())  # first of all: clients look for the reason when their connections end
        for relay in self._relays:
            relay.cancel()
        self.leave(why)

    def wait(self) -> None:
        """The engine is about to be started, once all of its gang are."""
        if self._gang is not None:
            self._gang.expect(self.number, in_loop(self._begin))

    def leave(self, why: LsvError) -> None:
        """The engine has ended, and with it all of its gang."""
        if self._gang is not None:
            self._gang.leave(self.number, why)

    def _begin(self, meeting: str) -> None:
        assert self._gang is not None
        self._gang.enter(self.number, in_loop(self._fall))
        self._order(Together(self.number, meeting))

    def _fall(self, why: LsvError) -> None:
        self._order(Fall(self.number, why.record()))

    def tell(self, told: Supervision, *, goes_on: bool) -> None:
        """The engine's machine says how it is, and whether that ``goes_on``, which it does while it has another engine.

        What keeps the first one from starting ends the server, as beside it; one that has served may come back, with
        its machine if need be.
        """
        hopeless, state = self.comings == 1 and not told.served, told.state
        if state == "ended" and not hopeless:
            state = "lost" if goes_on else "down"
        self._run += state == "running"
        self._publish(state, told.error)

    def give_up(self, why: LsvError) -> None:
        """Nobody will have the engine."""
        self._publish("ended", why.record())

    def connect(self, guest: Guest) -> None:
        """A connection to the engine: for the client that has waited longest."""
        while self._callers:
            caller = self._callers.popleft()
            if not caller.done():
                caller.set_result(guest)
                return
        guest.end.close()

    # Clients

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay((reader, writer)))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, client: Stream) -> None:
        try:
            guest = await self._call()
            await splice(client, await stream_over(guest.end))
        except (EngineDied, OSError, TimeoutError):
            pass  # the client learns more from the state
        finally:
            client[1].close()

    async def _call(self) -> Guest:
        """A connection to the engine. Raises ``EngineDied`` without a machine, ``TimeoutError``."""
        if self._send is None:
            raise EngineDied("there is no machine with this engine")
        caller = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        self._send(Dial(self.number))
        return await asyncio.wait_for(caller, _DIAL_SECONDS)

    def _publish(self, state: Literal["running", "down", "lost", "ended"], error: ErrorRecord | None) -> None:
        """What has ended stays so: clients have given up by then."""
        if not self._ended:
            self._ended = state == "ended"
            publish(self._folder.path, Supervision(state, self._run, error))
