"""One client's connection: nothing is lost or left behind for a reader who is slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lsv.engine.connection import Connection
from lsv.engine.messages import EngineMessage, Stats, Tokens, Update
from lsv_base.processes.wire import FrameReader


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        connection = Connection(ours)
        yield connection, theirs
        connection.close()


def read_all(connection: Connection, end: socket.socket) -> list[int]:
    """What a reader gets who has come back, as long as the engine only serves its sockets."""
    frames: FrameReader[EngineMessage] = FrameReader(EngineMessage)
    tokens: list[int] = []
    while True:
        try:
            data = end.recv(1 << 20)
        except BlockingIOError:
            return tokens
        for message in frames.feed(data):
            assert isinstance(message, Tokens)
            tokens += [token for update in message.updates for token in update.tokens]
        if connection.is_behind:
            connection.flush()


def test_what_waits_for_a_slow_reader_arrives_though_no_step_follows(ends: tuple[Connection, socket.socket]) -> None:
    connection, end = ends
    sent = 0
    while not connection.is_behind:
        connection.deliver([Update(id=1, tokens=tuple(range(sent, sent + 1000)))], Stats())
        sent += 1000
    connection.deliver([Update(id=1, tokens=(sent, sent + 1))], Stats())
    assert read_all(connection, end) == list(range(sent + 2))
    assert not connection.is_behind
