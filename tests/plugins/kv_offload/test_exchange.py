"""Contents that another engine keeps: fetched whole by whoever has the secret, in bounded time, or given up by name."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsv.config import Transfers
from lsv.errors import ConfigError
from lsv.processes.ports import free_port
from lsv.transports import Site
from lsv.transports.exchange import Seat, TransferFailed, join_address
from lsv.worker.nodes import door
from lsv.worker.nodes.handshake import FETCHING, JOINING, introduce
from lsv_kv_offload import form, producers, server
from lsv_kv_offload.exchange import FileExchange
from lsv_kv_offload.files import FileTransport

IDENTITY = "0123456789abcdef" * 2
KEYS = [b"\0\0" + bytes([number]) * 32 for number in range(5)]
CONTENT = bytes(range(256)) * 300
SECRET = b"a secret of two engines"

Open = Callable[..., FileExchange]


@pytest.fixture
def open_exchange(tmp_path: Path) -> Iterator[Open]:
    made: list[FileExchange] = []

    def open_one(
        name: str, *, port: int = 0, identity: str = IDENTITY, secret: bytes = SECRET, ranks: int = 2
    ) -> FileExchange:
        transfers = Transfers(
            produces=bool(port), consumes=not port, host="127.0.0.1", port=port, peers=(), timeout=5.0
        )
        options = {"kv_offload.path": str(tmp_path / name), "kv_offload.path_gib": 1.0}
        site = Site(identity=identity, rank=0, options=options)
        made.append(FileExchange(Seat(site=site, ranks=ranks, transfers=transfers, secret=secret)))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


@pytest.fixture
def port() -> int:
    return free_port()


def parts(exchange: FileExchange) -> list[FileTransport]:
    return [
        FileTransport(Site(identity=exchange.seat.site.identity, rank=rank, options=exchange.seat.site.options))
        for rank in range(exchange.seat.ranks)
    ]


def keep(exchange: FileExchange, *keys: bytes) -> None:
    for key in keys:
        for rank, part in enumerate(parts(exchange)):
            part.put(key, memoryview(CONTENT + bytes([rank]) + key))


def had(exchange: FileExchange, key: bytes) -> bool:
    """Whether all parts of a content are there, as they were kept."""
    for rank, part in enumerate(parts(exchange)):
        wanted = CONTENT + bytes([rank]) + key
        into = bytearray(len(wanted))
        if not part.get(key, memoryview(into)) or bytes(into) != wanted:
            return False
    return True


def fetch(exchange: FileExchange, port: int, *keys: bytes, seconds: float = 5.0) -> int:
    return exchange.fetch(join_address("127.0.0.1", port), keys, time.monotonic() + seconds)


def test_what_one_keeps_another_has(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    size = 2 * (form.SIZE + len(CONTENT) + 1 + len(KEYS[0]))
    assert fetch(consumer, port, *KEYS[:3]) == 3 * size
    assert [had(consumer, key) for key in KEYS] == [True, True, True, False, False]
    assert fetch(consumer, port, *KEYS) == 2 * size, "what is there already is not fetched again"
    producer.close()
    assert fetch(consumer, port, *KEYS) == 0


def test_what_comes_first_is_kept_where_something_is_missing(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS[:2], KEYS[3])
    with pytest.raises(TransferFailed, match="does not have all of the prompt"):
        fetch(consumer, port, *KEYS)
    assert [had(consumer, key) for key in KEYS] == [True, True, False, False, False]


def test_what_is_about_to_be_put_is_waited_for(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.expect(KEYS[0])
    timer = threading.Timer(0.2, keep, (producer, KEYS[0]))
    timer.start()
    assert fetch(consumer, port, KEYS[0])
    assert had(consumer, KEYS[0])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"identity": "f" * 32}, "of another form"),
        ({"ranks": 1}, "of another form"),
        ({"secret": b"some other secret"}, "another LSV_CLUSTER_KEY"),
    ],
)
def test_others_get_nothing(other, said, open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c", **other)
    keep(producer, *KEYS)
    with pytest.raises(TransferFailed, match=said):
        fetch(consumer, port, *KEYS)
    assert not had(consumer, KEYS[0])


def test_what_was_spoilt_is_not_taken(open_exchange, port, tmp_path):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS[:2])
    (file,) = (tmp_path / "p").rglob(f"{KEYS[1].hex()}-1")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(TransferFailed, match="its checksum is another"):
        fetch(consumer, port, *KEYS[:2])
    assert [had(consumer, key) for key in KEYS[:2]] == [True, False]


def test_who_is_not_there_is_left_alone_for_a_while(open_exchange, port):
    consumer = open_exchange("c")
    for _ in range(2):
        with pytest.raises(TransferFailed, match="can't be reached: Connection refused"):
            fetch(consumer, port, *KEYS)
    open_exchange("p", port=port)
    with pytest.raises(TransferFailed, match="can't be reached"):
        fetch(consumer, port, *KEYS)


def test_who_stalls_is_left_alone_too(open_exchange, port, monkeypatch):
    monkeypatch.setattr(producers, "_STALLED_SECONDS", 0.1)
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.expect(KEYS[0])
    for seconds in (0.2, 5.0):
        with pytest.raises(TransferFailed, match="longer than --kv-timeout"):
            fetch(consumer, port, *KEYS, seconds=seconds)


def test_what_begins_too_late_says_nothing_of_a_producer(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    with pytest.raises(TransferFailed, match="longer than --kv-timeout"):
        fetch(consumer, port, *KEYS, seconds=0)
    assert fetch(consumer, port, *KEYS)


def test_closing_breaks_off_what_is_under_way(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.expect(KEYS[0])
    threading.Timer(0.1, consumer.close).start()
    began = time.monotonic()
    with pytest.raises(TransferFailed, match=r"broke off|this engine ends|does not answer"):
        fetch(consumer, port, *KEYS, seconds=60)
    assert time.monotonic() - began < 4
    with pytest.raises(TransferFailed, match="this engine ends"):
        fetch(consumer, port, *KEYS)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n"])
def test_who_is_silent_or_something_else_holds_nobody_up(said, open_exchange, port):
    consumer = open_exchange("c")
    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].sendall(said) or time.sleep(1), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(TransferFailed):
            fetch(consumer, port, *KEYS, seconds=0.2)
        assert time.monotonic() - began < 4


def test_a_connection_that_breaks_costs_what_had_not_come(open_exchange, port, monkeypatch):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    sent = server.Server._send

    def break_off(self, line, end, part, key):
        if key == KEYS[2]:
            line.send_size(1 << 20)
            end.sendall(b"the beginning of it")
            raise ConnectionResetError
        return sent(self, line, end, part, key)

    monkeypatch.setattr(server.Server, "_send", break_off)
    with pytest.raises(TransferFailed, match="broke off"):
        fetch(consumer, port, *KEYS)
    assert [had(consumer, key) for key in KEYS] == [True, True, False, False, False]


def test_strangers_are_cut_off(open_exchange, port, monkeypatch):
    monkeypatch.setattr(door, "_STRANGER_SECONDS", 0.2)
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    with socket.create_connection(("127.0.0.1", port), 5) as slow:
        while slow.recv(100):
            pass
    monkeypatch.setattr(door, "_STRANGER_SECONDS", 20.0)
    with socket.create_connection(("127.0.0.1", port), 5) as node:
        introduce(node, SECRET, JOINING)
        assert node.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), 5) as rude:
        introduce(rude, SECRET, FETCHING)
        rude.sendall(b"\xff\xff\xff\xff")
        assert rude.recv(1) == b""
    assert fetch(consumer, port, *KEYS)


def test_a_port_that_is_taken_is_told_of(open_exchange, port):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="can't be listened at"):
        open_exchange("p", port=port)
