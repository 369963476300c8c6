"""Contents that another engine keeps: fetched whole by whoever has the secret, in bounded time, or given up by name."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lsv.config import Transfers
from lsv.processes.nodes import door
from lsv.processes.nodes.handshake import FETCHING, JOINING, introduce
from lsv.transports import Site
from lsv.transports.exchange import Seat, TransferFailed, join_address
from lsv_base.errors import ConfigError
from lsv_base.processes.ports import free_port
from lsv_kv_offload import coming, files, form, nearby, notices, producers, server, wire
from lsv_kv_offload.exchange import FileExchange
from lsv_kv_offload.files import FileTransport

IDENTITY = "0123456789abcdef" * 2
KEYS = [b"\0\0" + bytes([number]) * 32 for number in range(5)]
CONTENT = bytes(range(256)) * 300
SECRET = b"a secret of two engines"

Open = Callable[..., FileExchange]


@pytest.fixture(params=["network", "one machine"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How contents travel."""
    if request.param == "network":
        monkeypatch.setattr(nearby, "connect", lambda *_: None)
    return request.param


@pytest.fixture
def open_exchange(tmp_path: Path, way: str) -> Iterator[Open]:
    made: list[FileExchange] = []

    def open_one(
        name: str, *, port: int = 0, identity: str = IDENTITY, secret: bytes = SECRET, ranks: int = 2,
        timeout: float = 60.0,
    ) -> FileExchange:  # fmt: skip
        transfers = Transfers(
            produces=bool(port), consumes=not port, host="127.0.0.1", port=port, peers=(), timeout=timeout
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


def fetch(
    exchange: FileExchange,
    port: int,
    *keys: bytes,
    seconds: float = 5.0,
    pending: bool = False,
    came: Callable[[bytes], None] = lambda key: None,
) -> int:
    until = None if pending else time.monotonic() + seconds
    return exchange.fetch(join_address("127.0.0.1", port), keys, until, came)


def fetch_beside(exchange: FileExchange, port: int, *keys: bytes, **given: Any) -> Callable[[], int | Exception]:
    """A fetch in a thread; gives what comes of it."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(fetch, exchange, port, *keys, **given)
    pool.shutdown(wait=False)
    return lambda: future.exception(5) or future.result(5)


def wait_until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not true():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.001)


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
    with pytest.raises(TransferFailed, match="no longer has all of the prompt"):
        fetch(consumer, port, *KEYS)
    assert [had(consumer, key) for key in KEYS] == [True, True, False, False, False]


def test_what_is_about_to_be_put_is_waited_for(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.expect(KEYS[0])
    timer = threading.Timer(0.2, keep, (producer, KEYS[0]))
    timer.start()
    assert fetch(consumer, port, KEYS[0])
    assert had(consumer, KEYS[0])


def test_what_is_being_computed_comes_block_by_block(open_exchange, port, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.0)  # what nobody has promised is not waited for
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.promise(KEYS)
    told: list[bytes] = []
    came = fetch_beside(consumer, port, *KEYS, pending=True, came=told.append)
    for number, key in enumerate(KEYS):
        assert not consumer._parts[0].has(key)
        producer.expect(key)
        keep(producer, key)
        wait_until(lambda key=key: key in told)
        assert [had(consumer, one) for one in KEYS] == [place <= number for place in range(len(KEYS))]
    producer.withdraw(KEYS)
    assert came() == 2 * len(KEYS) * (form.SIZE + len(CONTENT) + 1 + len(KEYS[0]))


def test_who_asks_before_the_request_has_come_waits_for_its_promise(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    assert producer._server is not None
    awaited = producer._server.coming._news
    came = fetch_beside(consumer, port, KEYS[0], pending=True)
    wait_until(lambda: KEYS[0] in awaited)
    producer.promise(KEYS[:1])
    wait_until(lambda: KEYS[0] in awaited)
    producer.expect(KEYS[0])
    keep(producer, KEYS[0])
    assert came() > 0
    assert had(consumer, KEYS[0])


def test_what_nobody_promises_is_waited_for_in_bounds(open_exchange, port, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.05)
    _, consumer = open_exchange("p", port=port), open_exchange("c")
    with pytest.raises(TransferFailed, match="no longer has all of the prompt"):
        fetch(consumer, port, *KEYS, pending=True)


def test_what_is_withdrawn_is_not_waited_for(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.promise(KEYS)
    producer.promise(KEYS[:1])
    keep(producer, KEYS[0])
    came = fetch_beside(consumer, port, *KEYS, seconds=60)
    wait_until(lambda: had(consumer, KEYS[0]))
    assert producer._server is not None
    wait_until(lambda: KEYS[1] in producer._server.coming._news)
    producer.withdraw(KEYS)
    assert "no longer has all of the prompt" in str(came())


def test_those_who_wait_for_many_contents_are_all_woken(monkeypatch):
    monkeypatch.setattr(coming, "_MOST_AWAITED", 2)
    found = coming.Coming()
    found.promise(KEYS)
    began = time.monotonic()
    with ThreadPoolExecutor(len(KEYS)) as pool:

        def wait_for(key: bytes) -> None:
            while found.wait(key, 30.0, 0.0):
                pass

        waiting = [pool.submit(wait_for, key) for key in KEYS]
        wait_until(lambda: len(found._news) == 2)
        found.withdraw(KEYS)
        for one in waiting:
            one.result(10)
    assert time.monotonic() - began < 30


def test_a_producer_that_computes_says_so(open_exchange, port, monkeypatch):
    monkeypatch.setattr(server, "_SIGN_SECONDS", 0.01)
    check, signs = wire._check_size, list[int]()
    monkeypatch.setattr(wire, "_check_size", lambda said: signs.append(check(said)) or signs[-1])
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.promise(KEYS)
    came = fetch_beside(consumer, port, KEYS[0], pending=True)
    wait_until(lambda: signs[:5] == [wire.BUSY] * 5)
    producer.expect(KEYS[0])
    keep(producer, KEYS[0])
    assert came() > 0


def test_a_producer_that_says_nothing_is_left_alone(open_exchange, port, monkeypatch):
    monkeypatch.setattr(producers, "_STALLED_SECONDS", 0.0)
    monkeypatch.setattr(server.Sign, "give", lambda self: 1.0)
    producer, consumer = open_exchange("p", port=port), open_exchange("c", timeout=0.1)
    producer.promise(KEYS)
    for _ in range(2):
        with pytest.raises(TransferFailed, match="longer than --kv-timeout"):
            fetch(consumer, port, KEYS[0], pending=True)
    producer.withdraw(KEYS)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), 1e300])
def test_questions_of_no_sense_get_no_answer_and_hold_nobody_up(seconds, open_exchange, port):
    producer = open_exchange("p", port=port)
    keep(producer, KEYS[0])
    with socket.create_connection(("127.0.0.1", port), 10) as end:
        introduce(end, SECRET, FETCHING)
        wire.Line(end, time.monotonic() + 10).send_ask(wire.Ask(IDENTITY, 2, (KEYS[1],), seconds, True))
        producer.close()
        with suppress(ConnectionResetError):
            while end.recv(1 << 16):
                pass


@pytest.mark.parametrize("way", ["one machine"], indirect=True)
def test_on_one_machine_nothing_is_copied(open_exchange, port, tmp_path):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    assert fetch(consumer, port, *KEYS)
    for key in KEYS:
        names = [next((tmp_path / who).rglob(f"{key.hex()}-1")) for who in "pc"]
        assert names[0].stat().st_ino == names[1].stat().st_ino
    names[0].unlink()
    assert had(consumer, KEYS[-1]), "what one removes the other keeps"


@pytest.mark.parametrize("way", ["one machine"], indirect=True)
def test_between_file_systems_of_one_machine_files_are_copied(open_exchange, port, tmp_path, monkeypatch):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(files.os, "link", refuse)
    assert fetch(consumer, port, *KEYS)
    assert all(had(consumer, key) for key in KEYS)
    assert not list((tmp_path / "c").rglob("*.tmp"))


@pytest.mark.parametrize("way", ["one machine"], indirect=True)
def test_processes_of_other_users_are_reached_over_the_network_alone(open_exchange, port, tmp_path, monkeypatch):
    monkeypatch.setattr(nearby, "_user_of", lambda end: 12345)
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, KEYS[0])
    assert fetch(consumer, port, KEYS[0])
    names = [next((tmp_path / who).rglob(f"{KEYS[0].hex()}-1")) for who in "pc"]
    assert names[0].stat().st_ino != names[1].stat().st_ino


@pytest.mark.parametrize("way", ["one machine"], indirect=True)
def test_a_name_that_somebody_has_leaves_the_network(open_exchange, port):
    with nearby.listen(join_address("127.0.0.1", port)):
        producer = open_exchange("p", port=port)
    keep(producer, KEYS[0])
    assert fetch(open_exchange("c"), port, KEYS[0])


@pytest.mark.parametrize("said", [b"", (9 << 10).to_bytes(8, "little"), b"\0\1", (1 << 50).to_bytes(8, "little")])
def test_lengths_without_files_are_no_files(said):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(said)
        there.shutdown(socket.SHUT_WR)
        with pytest.raises((ValueError, ConnectionResetError)):
            wire.Line(here, time.monotonic() + 5).read_descriptor()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"identity": "f" * 32}, "different form"),
        ({"ranks": 1}, "different form"),
        ({"secret": b"some other secret"}, "another LSV_CLUSTER_KEY"),
    ],
)
def test_others_get_nothing(other, said, open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c", **other)
    keep(producer, *KEYS)
    with pytest.raises(TransferFailed, match=said):
        fetch(consumer, port, *KEYS)
    assert not had(consumer, KEYS[0])


def test_what_was_spoilt_is_not_taken(open_exchange, port, tmp_path, way):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS[:2])
    (file,) = (tmp_path / "p").rglob(f"{KEYS[1].hex()}-1")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    if way == "network":
        with pytest.raises(TransferFailed, match="its checksum is another"):
            fetch(consumer, port, *KEYS[:2])
    else:  # where nothing is copied, what reads it finds out
        fetch(consumer, port, *KEYS[:2])
    assert [had(consumer, key) for key in KEYS[:2]] == [True, False]
    assert not list((tmp_path / "c").rglob(f"{KEYS[1].hex()}-1"))


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


@pytest.mark.parametrize(("seconds", "said"), [(0.05, "longer than --kv-timeout"), (60.0, "broke off")])
def test_a_connection_that_is_closed_when_the_time_is_up_is_late(seconds, said, open_exchange, port):
    open_exchange("p", port=port)
    until = time.monotonic() + seconds

    def break_off():
        with producers.Producers(SECRET).call(f"127.0.0.1:{port}", until, 5.0):
            time.sleep(0.1)
            raise ConnectionError("the connection was closed")

    with pytest.raises(TransferFailed, match=said):
        break_off()


def test_what_begins_too_late_says_nothing_of_a_producer(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    with pytest.raises(TransferFailed, match="longer than --kv-timeout"):
        fetch(consumer, port, *KEYS, seconds=0)
    assert fetch(consumer, port, *KEYS)


def test_closing_breaks_off_what_is_under_way(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    producer.promise(KEYS)
    came = fetch_beside(consumer, port, *KEYS, seconds=60)
    assert producer._server is not None
    wait_until(lambda: KEYS[0] in producer._server.coming._news)
    began = time.monotonic()
    consumer.close()
    with pytest.raises(TransferFailed, match=r"broke off|this engine ends|does not answer"):
        raise came()
    assert time.monotonic() - began < 4
    with pytest.raises(TransferFailed, match="this engine ends"):
        fetch(consumer, port, *KEYS)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n"])
def test_who_is_silent_or_something_else_holds_nobody_up(said, open_exchange, port):
    consumer = open_exchange("c")
    over = threading.Event()

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as end:
            end.sendall(said)
            over.wait(10)

    with socket.create_server(("127.0.0.1", port)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(answer, listener)
        began = time.monotonic()
        with pytest.raises(TransferFailed):
            fetch(consumer, port, *KEYS, seconds=0.2)
        over.set()
        assert time.monotonic() - began < 4


def test_a_connection_that_breaks_costs_what_had_not_come(open_exchange, port, monkeypatch):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    sent = server.Server._send

    def break_off(self, line, part, key, pending):
        if key == KEYS[2]:
            line.send((1 << 20).to_bytes(8, "little") + b"the beginning of it")
            raise ConnectionResetError
        return sent(self, line, part, key, pending)

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
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="can't listen there"):
        open_exchange("p", port=port)


def test_consumers_are_notified_of_revoked_contents(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    producer.revoke(KEYS[:1])
    heard: list[bytes] = []
    consumer.follow(heard.extend)
    fetch(consumer, port, *KEYS[1:4])
    wait_until(lambda: heard == KEYS[:1])
    producer.revoke(KEYS[1:3])
    wait_until(lambda: heard == KEYS[:3])


def test_a_content_that_is_revoked_is_not_handed_on_until_it_is_put_anew(open_exchange, port):
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS[:2])
    producer.revoke(KEYS[:1])
    with pytest.raises(TransferFailed, match="no longer has all of the prompt"):
        fetch(consumer, port, KEYS[0])
    producer.expect(KEYS[0])
    assert fetch(consumer, port, *KEYS[:2])


def test_a_consumer_hears_of_what_was_revoked_while_the_connection_was_down(open_exchange, port, monkeypatch):
    monkeypatch.setattr(notices, "_REST_SECONDS", 0.01)
    monkeypatch.setattr(producers, "_REST_SECONDS", 0.01)
    producer, consumer = open_exchange("p", port=port), open_exchange("c")
    keep(producer, *KEYS)
    heard: list[bytes] = []
    consumer.follow(heard.extend)
    fetch(consumer, port, KEYS[0])
    producer.close()
    again = open_exchange("p", port=port)
    again.revoke(KEYS[:1])
    wait_until(lambda: heard == KEYS[:1])
