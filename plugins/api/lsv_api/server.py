"""Running the application in one process: listen, drain on the first signal, stop on the second."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sanic import Sanic

from lsv import plugins
from lsv.engine.client import Client, Service
from lsv_api.app import create_app
from lsv_api.contract import Contract
from lsv_api.http.context import Api, Shared
from lsv_api.http.failures import log
from lsv_api.http.protocol import Protocol, most_connections
from lsv_api.listening import BACKLOG, address_of, listening, tls_context
from lsv_api.options import ApiOptions
from lsv_base.processes.output import print_line

if TYPE_CHECKING:
    from sanic.server.async_server import AsyncioServer

WATCH_SECONDS = 0.2
HANDSHAKE_SECONDS = 10.0
"""How long a client may take to agree on TLS: it holds a socket meanwhile that nothing else counts."""

LAST_WORDS_SECONDS = 1.0
"""How long connections get at the end to send what is already written."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def open_server(
    service: Service,
    settings: Mapping[str, Any],
    *,
    listener: socket.socket | None = None,
    shared: Shared | None = None,
) -> Server:
    """A server that is to be run. With a ``listener``, it is one of several processes, which have things ``shared``.

    Raises ``ConfigError``.
    """
    options = ApiOptions.from_settings(settings)
    app = create_app(service, options, shared, settings)
    announce(app, service.find(None))
    return Server(service, options, app, listener)


def announce(app: Sanic[Any, Any], client: Client) -> None:
    """Let other plugins change the application (hook ``lsv_api_app_created``)."""
    chosen = {*client.config.plugins, "api"} if client.config.plugins else None
    plugins.load(sorted(chosen) if chosen else None).call("lsv_api_app_created", app=app, client=client)


class Server:
    """One listening application. ``address`` is known once it listens."""

    def __init__(
        self, service: Service, options: ApiOptions, app: Sanic[Any, Any], listener: socket.socket | None = None
    ) -> None:
        self._listener = listener
        self.is_listening = asyncio.Event()
        self._service = service
        self._options = options
        self._app = app
        self._api: Api = app.ctx.api
        self._drain = asyncio.Event()
        self._halt = asyncio.Event()
        self.address = ""

    def stop(self) -> None:
        """Drain; called again, stop at once."""
        (self._halt if self._drain.is_set() else self._drain).set()

    async def run(self) -> None:
        """Listen until stopped."""
        tls = tls_context(self._options)
        with listening(self._options) if self._listener is None else closing(self._listener) as sock:
            async with running(self._app.ctx.contracts, self._api):
                await self._serve(sock, tls)

    async def _serve(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        server = await self._listen(sock, tls)
        watcher = asyncio.create_task(
            watch_engines(self._service, self._options, self.address, says_ready=self._listener is None)
        )
        counter = asyncio.create_task(self._api.metrics.keep_advancing())
        try:
            with taking_signals(self.stop):
                await first_of(self._drain.wait(), watcher)
                if not watcher.done():
                    await self._wait_for_requests()
        finally:
            watcher.cancel()
            counter.cancel()
            await self._close(server)
        if watcher.done() and not watcher.cancelled():
            watcher.result()

    async def _listen(self, sock: socket.socket, tls: ssl.SSLContext | None) -> AsyncioServer:
        handshake = {"ssl_handshake_timeout": HANDSHAKE_SECONDS} if tls else {}
        server = await self._app.create_server(
            sock=sock,
            ssl=tls,
            protocol=Protocol,
            # so many are accepted at once, before the protocol hears of one
            backlog=min(BACKLOG, most_connections() // 8),
            asyncio_server_kwargs={"start_serving": False, **handshake},
        )
        assert server is not None
        await server.startup()
        await server.before_start()
        await server.start_serving()
        await server.after_start()
        self.address = address_of(sock, self._options)
        self.is_listening.set()
        log.info("listening on %s", self.address)
        return server

    async def _wait_for_requests(self) -> None:
        """Let running requests end; new ones are refused meanwhile."""
        self._api.traffic.draining = True
        log.info("draining: %d requests running", self._api.traffic.running)
        await _within(self._options.drain_timeout, first_of(self._api.traffic.idle(), self._halt.wait()))

    async def _close(self, server: AsyncioServer) -> None:
        """Stop listening, let written data out, cut what still runs (which aborts it in the engine)."""
        await server.before_stop()
        server.close()
        for connection in list(server.connections):
            connection.close_if_idle()
        if not self._api.traffic.running:
            await _within(LAST_WORDS_SECONDS, _until_empty(server.connections))
        for connection in list(server.connections):
            connection.abort()
        await _within(LAST_WORDS_SECONDS, self._api.traffic.idle())
        self._api.templates.close()
        if not self._api.traffic.running:  # running requests still count their tokens
            self._api.quotas.buckets.close()
        await server.after_stop()
        Sanic.unregister_app(self._app)


@asynccontextmanager
async def running(contracts: Iterable[Contract], api: Api) -> AsyncIterator[None]:
    """With what the contracts need while the server runs."""
    async with AsyncExitStack() as stack:
        for contract in contracts:
            if contract.run is not None:
                await stack.enter_async_context(contract.run(api))
        yield


async def watch_engines(service: Service, options: ApiOptions, address: str, *, says_ready: bool = True) -> None:
    """Say once when all engines are ready; return only by raising the error of a dead engine."""
    while True:
        dead = service.dead()
        if dead is not None and not options.keep_alive_on_engine_death:
            await asyncio.sleep(LAST_WORDS_SECONDS)
            raise dead
        if says_ready and all(client.status.state == "ready" for client in service.clients.values()):
            # A line other programs wait for: on standard output, whatever logging is set to.
            print_line(f"lsv is ready on {address}")
            print_line(f"try: {curl(address, options, service.find(None))}")
            says_ready = False
        await asyncio.sleep(WATCH_SECONDS)


@contextmanager
def taking_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Take the process's stop signals, where this thread may (only the main one)."""
    loop = asyncio.get_running_loop()
    taken = []
    for number in _SIGNALS:
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, stop)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


def curl(address: str, options: ApiOptions, client: Client) -> str:
    """A command to try the server with: a chat, or the transcription of an audio file of the reader's. Where a key is
    needed, they fill in their own.
    """
    key = "" if options.keyless else " -H 'Authorization: Bearer KEY'"
    if options.uds is not None:
        address = f"--unix-socket {options.uds} {'https' if options.ssl_certfile else 'http'}://localhost"
    if client.media is not None and client.media.transcriber is not None:
        return f"curl {address}/v1/audio/transcriptions{key} -F file=@sound.wav"
    body = '{"messages": [{"role": "user", "content": "Who are you?"}]}'
    return f"curl {address}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"


async def first_of(*waits: Coroutine[Any, Any, object] | asyncio.Task[None]) -> None:
    """Return when the first of several waits is over. Coroutines are then cancelled, tasks go on."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


async def _until_empty(connections: Collection[object]) -> None:
    while connections:
        await asyncio.sleep(0.01)


async def _within(seconds: float, wait: Coroutine[Any, Any, None]) -> None:
    """Await for at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait
