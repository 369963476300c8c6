"""The engine's loop, and clients that leave while it serves them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv.engine.connection import ConnectionLost
from lsv.engine.engine import Engine
from lsv.engine.loop import EngineLoop
from lsv.engine.messages import Abort, Control, Controlled, EngineMessage, Hello
from lsv.engine.orders.order import ResetPrefixCache
from lsv.engine.parts.profiles import StopProfile
from lsv.scheduler.policy import Fcfs
from lsv_base.processes.orders import encode_order
from lsv_base.processes.wire import FrameReader, encode_frame
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "engine")


@pytest.fixture
def loop(address: str) -> Iterator[EngineLoop]:
    """A loaded engine loop, polled by the test."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    ours, theirs = socket.socketpair()
    engine: Engine[int] = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts)
    found = EngineLoop(engine, listener, theirs)
    found.load()
    yield found
    engine.close()
    for end in (*found._connections._open.values(), listener, ours, theirs):
        end.close()
    found._selector.close()


def connect(loop: EngineLoop, address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(address)
    loop._poll(1.0)
    return client


def test_a_client_that_leaves_before_its_answers(loop: EngineLoop, address: str) -> None:
    """A client leaves before an answer. Its other messages are ignored, and the loop goes on."""
    client, other = connect(loop, address), connect(loop, address)
    reset = encode_order(ResetPrefixCache())
    for message in (Control(0, *reset), Control(1, *reset), Abort((0,))):
        client.sendall(encode_frame(message))
    client.close()
    for _ in range(3):
        loop._poll(0.0)
        loop._deliver({})
    assert list(loop._connections._open) == [2]
    other.close()


def test_a_client_whose_orders_make_no_sense_is_answered(loop: EngineLoop, address: str) -> None:
    client = connect(loop, address)
    for message in (Control(0, "dance", b""), Control(1, "sleep", b"\xc1"), Control(2, *encode_order(StopProfile()))):
        client.sendall(encode_frame(message))
    loop._poll(1.0)
    answers: FrameReader[EngineMessage] = FrameReader(EngineMessage)
    found = [message for message in answers.feed(client.recv(1 << 16)) if isinstance(message, Controlled)]
    assert [(one.id, one.error and one.error.code) for one in found] == [(id, "invalid_request") for id in range(3)]
    assert list(loop._connections._open) == [1]
    client.close()


def test_a_client_that_is_lost_while_another_is_served(
    loop: EngineLoop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients have sent messages, and both events are pending when the first is handled."""
    clients = [connect(loop, address) for _ in range(2)]
    for client in clients:
        client.sendall(encode_frame(Hello()))

    def lose_all(number: int, *given: object) -> None:
        for one in tuple(loop._connections._open):
            loop._connections._lose(one, ConnectionLost("gone"))

    monkeypatch.setattr(loop._connections, "_on_message", lose_all)
    loop._poll(1.0)
    assert not loop._connections._open
    for client in clients:
        client.close()
