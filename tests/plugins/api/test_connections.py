"""Clients that hold connections: how many, for how long, and who goes when there is no room."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator

import pytest

from lsv_api.http import protocol
from lsv_api.http.protocol import Protocol, most_connections
from lsv_testing.fakes.client import FakeClient, fake_config
from suite.sites import Site, StartSite
from suite.waiting import until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


READ: dict[tuple[str, int], int] = {}
"""How many bytes servers have read, by the client's address."""


@pytest.fixture(autouse=True)
def watch_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record bytes in ``READ``."""
    take_connection, take_data = Protocol.connection_made, Protocol.data_received

    def connection_made(self: Protocol, transport: asyncio.Transport) -> None:
        READ[transport.get_extra_info("peername")] = 0
        take_connection(self, transport)

    def data_received(self: Protocol, data: bytes) -> None:
        READ[self.transport.get_extra_info("peername")] += len(data)
        take_data(self, data)

    READ.clear()
    monkeypatch.setattr(Protocol, "connection_made", connection_made)
    monkeypatch.setattr(Protocol, "data_received", data_received)


class Crowd:
    """Connections to one server; they are closed at the end."""

    def __init__(self, site: Site) -> None:
        host, port = site.server.address.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._all: list[asyncio.StreamWriter] = []

    async def open(self, data: bytes = b"", *, window: int | None = None) -> Streams:
        """A connection of which the server has read ``data``; its buffer for answers takes ``window`` bytes."""
        sock = socket.socket()
        if window is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self._address)
        reader, writer = await asyncio.open_connection(sock=sock, limit=window or 1 << 16)
        self._all.append(writer)
        writer.write(data)
        await until(lambda: READ.get(sock.getsockname()) == len(data))
        return reader, writer

    def close(self) -> None:
        for writer in self._all:
            writer.close()


@pytest.fixture
async def crowd(site: Site) -> AsyncIterator[Crowd]:
    crowd = Crowd(site)
    yield crowd
    crowd.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server has closed a connection that gets no answer."""
    try:
        return await asyncio.wait_for(reader.read(1), 0.2) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /hea", HEAD + b"content-length: 9\r\n\r\n{", HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["silent", "half a head", "half a body", "half of its chunks"],
)
async def test_who_waits_longest_makes_room(
    site: Site, crowd: Crowd, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "most_connections", lambda: 20)
    rude = [(await crowd.open(sent))[0] for _ in range(40)]
    assert (await site.complete()).status_code == 200
    closed = await asyncio.gather(*map(is_closed, rude))
    assert closed == sorted(closed, reverse=True), "the oldest ones go first"
    assert 20 <= sum(closed) <= 22


async def test_requests_at_work_stay(start: StartSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has asked and waits for the answer keeps its connection; where all do, newcomers are turned away."""
    monkeypatch.setattr(protocol, "most_connections", lambda: 3)
    engine = FakeClient()
    engine.gate.clear()
    site = await start(engine)
    crowd = Crowd(site)
    body = b'{"prompt": "Hi", "stream": true}'
    working = [await crowd.open(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) for _ in range(3)]
    for _ in range(5):
        assert await is_closed((await crowd.open())[0])
    engine.gate.set()
    for reader, _ in working:
        assert b"[DONE]" in await asyncio.wait_for(reader.readuntil(b"[DONE]"), 10)
    crowd.close()


async def test_a_head_can_not_be_drawn_out(site: Site, crowd: Crowd) -> None:
    site.app.config.REQUEST_TIMEOUT = 0.5
    reader, writer = await crowd.open(b"GET /health HTTP/1.1\r\n")
    answer = asyncio.create_task(reader.readline())
    for _ in range(100):
        writer.write(b"x: y\r\n")
        await asyncio.sleep(0.05)
        if answer.done():
            break
    assert answer.result().startswith(b"HTTP/1.1 408")


async def test_who_reads_nothing_is_left(start: StartSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.3)
    site = await start(FakeClient(fake_config(max_model_len=1 << 20), answer="x" * 40_000))
    crowd = Crowd(site)
    body = b'{"prompt": "Hi", "stream": true, "max_tokens": 40000}'
    await crowd.open(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body, window=4096)
    async with asyncio.timeout(10):
        await until(lambda: site.app.ctx.api.traffic.running)
        await site.app.ctx.api.traffic.idle()
    assert (await site.complete()).status_code == 200
    crowd.close()


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for limits, most, asked in (
        ((1024, 4096), 3072, [(4096, 4096)]),
        ((1024, 1 << 20), 49_152, [(1 << 16, 1 << 20)]),
        ((1 << 18, 1 << 20), 49_152, []),
        ((1024, resource.RLIM_INFINITY), 49_152, [(1 << 16, resource.RLIM_INFINITY)]),
    ):
        raised.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert most_connections.__wrapped__() == most
        assert raised == asked
