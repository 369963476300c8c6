"""The parent of several API processes: starts them, passes signals on, replaces those that end or hang."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lsv.engine.client import Client, Service
from lsv.engine.connect import EngineClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.settings import environment_with
from lsv_api.accounts.buckets import Buckets
from lsv_api.fleet.messages import Alive, Engine, Join
from lsv_api.options import ApiOptions
from lsv_base.errors import LsvError
from lsv_base.processes.child import Child
from lsv_base.processes.folder import PrivateFolder

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Until the first sign of life, for which Python and its imports must be there."""
SILENCE_SECONDS = 10.0
"""After so long without a sign of life, a member hangs."""
RESTARTS, WINDOW_SECONDS = 10, 60.0
"""How often a member may be replaced, for each of them, within so many seconds."""
END_SECONDS = 5.0
"""What members get beyond the time for draining."""


class Member:
    """One API process, replaced for as long as it is wanted."""

    def __init__(
        self,
        join: Join,
        inherited: Sequence[socket.socket | Buckets],
        restarts: RestartPolicy,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.serving = asyncio.Event()
        self._threads = threads
        self._join = join
        self._inherited = inherited
        self._restarts = restarts
        self._child: Child[Join, Alive] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Keep a process running until ``send_signal`` has ended it. Raises the error that it reports."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            child = self._child = Child(
                "lsv_api.fleet.member", self._join, Alive, inherited=self._inherited, own_group=True,
                # prometheus_client reads it when it is imported
                environment=environment_with({"PROMETHEUS_MULTIPROC_DIR": self._join.metrics}),
            )  # fmt: skip
            try:
                ended = await loop.run_in_executor(self._threads, self._watch, child, loop)
            finally:
                child.end()
            if self._stopping:
                return
            if not self.serving.is_set():
                raise LsvError(f"an API process {ended} before it could serve; its log says why")
            delay = self._restarts.delay(loop.time())
            if delay is None:
                raise LsvError("the API processes keep ending; their log says why")
            log.error("an API process %s; starting another one in %g s", ended, delay)
            await asyncio.sleep(delay)

    def send_signal(self, number: signal.Signals) -> None:
        """Tell the process to drain, or, the second time, to stop at once."""
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """End it by force."""
        self._stopping = True
        if self._child is not None:
            self._child.kill()

    def _watch(self, child: Child[Join, Alive], loop: asyncio.AbstractEventLoop) -> str:
        """Wait, in a thread, until the process ends or hangs; how it did. Raises the error that it reports."""
        limit = START_SECONDS
        while True:
            try:
                alive = child.receive(limit)
            except TimeoutError:
                child.kill()
                return f"hangs: no sign of life for {limit:g} s; it was killed"
            except (EOFError, OSError, ValueError):
                child.end(END_SECONDS)
                return child.how_it_ended()
            limit = SILENCE_SECONDS
            if alive.serving:
                loop.call_soon_threadsafe(self.serving.set)


class Fleet:
    """All API processes of a server. They share a listening socket, the accounts' buckets and a folder for metrics."""

    def __init__(
        self,
        service: Service,
        options: ApiOptions,
        settings: Mapping[str, Any],
        listener: socket.socket,
        buckets: Buckets,
    ) -> None:
        self._options = options
        self._folder = PrivateFolder(in_memory=True)
        clients: Sequence[Client] = list(dict.fromkeys(service.clients.values()))
        engines = [
            Engine(client.config, tuple(map(str, client.addresses)))
            for client in clients
            if isinstance(client, EngineClient)
        ]
        join = Join(tuple(engines), dict(settings), str(self._folder.path))
        restarts = RestartPolicy(RESTARTS * options.server_count, WINDOW_SECONDS)
        self._threads = ThreadPoolExecutor(options.server_count, thread_name_prefix="lsv-watch")  # one watches each
        self.members = [Member(join, (listener, buckets), restarts, self._threads) for _ in range(options.server_count)]
        self._signalled = 0

    async def run(self) -> None:
        """Run until stopped. Raises the first error that a member reports."""
        tasks = [asyncio.create_task(member.run()) for member in self.members]
        try:
            # members end when they are stopped, when the engine has died, or when they keep breaking
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._signalled:
                limit = self._options.drain_timeout + END_SECONDS
                done, _ = await asyncio.wait(tasks, timeout=limit)
            for task in done:
                task.result()
        finally:
            for member in self.members:
                member.kill()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._threads.shutdown()
            self._folder.remove()

    async def wait_until_serving(self) -> None:
        """Return when every member takes requests."""
        for member in self.members:
            await member.serving.wait()

    def stop(self) -> None:
        """Have all members drain; called again, stop at once."""
        self._signalled += 1
        for member in self.members:
            member.send_signal(signal.SIGTERM)
