"""Hostile clients of the disaggregation proxy: they leave, send endlessly, or are pages of other sites."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from suite.waiting import wait_until

PROXY = Path(__file__).resolve().parents[2] / "deploy" / "disaggregated" / "proxy.py"
BODY = json.dumps({"prompt": "Hi"}).encode()


class Backend(ThreadingHTTPServer):
    """A server that answers on request, and records clients that leave before."""

    daemon_threads = True

    def __init__(self) -> None:
        backend = self
        self.open, self.left = 0, 0
        self.go_on = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                backend.open += 1
                while not backend.go_on.is_set():
                    self.connection.settimeout(0.02)
                    with suppress(TimeoutError):
                        if not self.connection.recv(1, socket.MSG_PEEK):
                            backend.left += 1
                            return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.go_on.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def module() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("lsv_proxy", PROXY)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["lsv_proxy"] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules["lsv_proxy"]


@pytest.fixture
def proxy(module: Any, backend: Backend) -> Iterator[Any]:
    """A proxy whose producer and consumer are the backend."""
    server = module.make_server("127.0.0.1", 0, backend.url, backend.url)
    threading.Thread(target=server.serve_forever, args=(module.LOOK_SECONDS,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def send(proxy: Any, body: bytes, *lines: str, path: str = "/v1/completions", host: str = "localhost") -> socket.socket:
    end = socket.create_connection(("127.0.0.1", proxy.server_port), 20)
    lines = lines or (f"Content-Length: {len(body)}",)
    end.sendall("\r\n".join((f"POST {path} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode() + body)
    return end


def status(end: socket.socket) -> int:
    with end:
        return int(end.recv(100).split()[1])


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_work_ends_when_its_client_leaves(proxy: Any, backend: Backend, size: int) -> None:
    """First the producer works, then the consumer; with a known producer both work at the same time."""
    producer = backend.url
    with send(proxy, BODY.ljust(size)):
        wait_until(lambda: backend.open == 1)
    left = time.monotonic()
    wait_until(lambda: backend.left == 1)
    assert time.monotonic() - left < 1.5
    proxy.RequestHandlerClass.told[producer] = {"remote_host": "x"}
    with send(proxy, BODY.ljust(size)):
        wait_until(lambda: backend.open == 3)
    wait_until(lambda: backend.left == 3)
    assert proxy.RequestHandlerClass.told, "that a client left says nothing of the producer"
    wait_until(lambda: not proxy.exchanges)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("Content-Length: -1",), 400),
        (("Content-Length: 1_000",), 400),
        (("Content-Length: 5", "Content-Length: 6"), 400),
        (("Content-Length: 99999999999999999999",), 413),
        ((f"Content-Length: {33 << 20}",), 413),
        (("Transfer-Encoding: chunked",), 411),
    ],
)
def test_lengths_are_checked_before_anything_is_read(
    proxy: Any, backend: Backend, lines: tuple[str, ...], expected: int
) -> None:
    assert status(send(proxy, b"", *lines)) == expected
    assert backend.open == 0


def test_all_bodies_together_are_limited(
    proxy: Any, backend: Backend, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALL_BYTES", 1500)
    with send(proxy, BODY.ljust(1000)):
        wait_until(lambda: backend.open == 1)
        assert status(send(proxy, BODY.ljust(1000))) == 503


def test_connections_are_limited(proxy: Any, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 3)
    silent = [socket.create_connection(("127.0.0.1", proxy.server_port), 20) for _ in range(3)]
    wait_until(lambda: len(proxy.exchanges) == 3)
    assert status(send(proxy, BODY)) == 503
    for end in silent:
        end.close()
    wait_until(lambda: not proxy.exchanges)


def test_a_slow_head_is_cut_off(proxy: Any, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", proxy.server_port), 20) as end:
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 10:
                end.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_pages_of_other_sites_are_refused(proxy: Any, backend: Backend, origin: str) -> None:
    length = f"Content-Length: {len(BODY)}"
    assert status(send(proxy, BODY, host="evil.example")) == 403
    assert status(send(proxy, BODY, length, f"Origin: {origin}")) == 403
    assert status(send(proxy, BODY, length, "Content-Type: text/plain")) == 415
    assert backend.open == 0
    backend.go_on.set()
    assert status(send(proxy, BODY, length, "Origin: http://localhost")) == 200
    assert status(send(proxy, BODY, length, f"Origin: {origin}", "Authorization: Bearer k")) == 200


def test_named_hosts(module: Any, backend: Backend) -> None:
    backend.go_on.set()
    for address, hosts, asked, expected in (
        ("127.0.0.1", "proxy.example", "proxy.example:9000", 200),
        ("127.0.0.1", "proxy.example", "evil.example", 403),
        ("127.0.0.1", "*", "evil.example", 200),
        ("0.0.0.0", "", "evil.example", 200),
        ("0.0.0.0", "proxy.example", "evil.example", 403),
    ):
        server = module.make_server(address, 0, backend.url, backend.url, hosts)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert status(send(server, BODY, host=asked)) == expected
        server.shutdown()
        server.server_close()
