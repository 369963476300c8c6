"""Unauthenticated connections to the port between machines do not delay connections with the key."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lsv.processes.nodes import door as doors
from lsv.processes.nodes.door import Door, listen
from lsv.processes.nodes.handshake import FETCHING, introduce

SOON = 0.5
"""Seconds; a handshake alone takes milliseconds."""


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(listen("127.0.0.1", 0), b"key")
    yield opened
    opened.close()


def enter(door: Door) -> float:
    """Seconds until a connection with the key is accepted."""
    began = time.monotonic()
    with socket.create_connection((door.host, door.port), 10) as end:
        end.settimeout(10)
        introduce(end, b"key", FETCHING)
    taken = time.monotonic() - began
    while True:
        guest = door.wait()
        if guest is not None and guest.purpose == FETCHING:
            guest.end.close()
            return taken


class Crowd:
    """Run threads that repeat an action on a listener."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(act,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, act: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                act()
            except OSError:
                self._stop.wait(0.01)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)


@pytest.mark.parametrize("count", [64, 300])
def test_silent_connections_delay_no_other(door: Door, count: int) -> None:
    silent = [socket.create_connection((door.host, door.port), 5) for _ in range(count)]
    try:
        assert max(enter(door) for _ in range(3)) < SOON
        assert len(door._strangers) <= doors._MOST
    finally:
        for end in silent:
            end.close()


def test_wrong_keys_delay_no_other(door: Door) -> None:
    def guess() -> None:
        with socket.create_connection((door.host, door.port), 5) as end:
            end.settimeout(4)
            end.recv(44)
            end.sendall(os.urandom(66))
            end.recv(32)

    crowd = Crowd(4, guess)
    try:
        time.sleep(0.5)
        assert max(enter(door) for _ in range(3)) < SOON
    finally:
        crowd.close()


def test_the_busiest_address_loses_its_oldest_connection(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_MOST", 4)
    far = socket.create_connection((door.host, door.port), 5, source_address=("127.0.0.2", 0))
    far.settimeout(5)
    flood = [socket.create_connection((door.host, door.port), 5) for _ in range(20)]
    try:
        introduce(far, b"key", FETCHING)
    finally:
        for end in (far, *flood):
            end.close()


def test_silent_connections_are_closed(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_STRANGER_SECONDS", 0.1)
    with socket.create_connection((door.host, door.port), 5) as end:
        end.settimeout(5)
        assert len(end.recv(100)) == 44
        assert end.recv(1) == b""
