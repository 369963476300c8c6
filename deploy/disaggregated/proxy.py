#!/usr/bin/env python3
"""A small proxy before servers that share requests: each prompt goes to a producer, which computes it, and a consumer.

    proxy.py --producers http://10.0.0.1:8000 --consumers http://10.0.0.2:8000,http://10.0.0.3:8000 --port 9000

Servers of one kind take turns. The first answer of a producer tells where it hands its KV cache on; from then on
consumers are asked at the same time and fetch what it computes as it comes. Where no producer answers, the consumer
computes the prompt itself. Needs nothing but Python. Proxies of vLLM's kind, which wait for the producer, work as well.

Without a key of the servers in it, a request is checked as lsv checks those to a server without a key: on a loopback
address by the name that it calls the proxy by, and by the web page that it comes from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

SHARED = ("/v1/completions", "/v1/chat/completions")
PASSED = ("authorization", "content-type", "traceparent", "x-request-id")
BACK = ("content-type", "retry-after", "x-request-id")
SECONDS = 600
READ_SECONDS = 60
"""What a client gets to send its request."""
MOST_CONNECTIONS = 256
MOST_BYTES = 32 << 20
"""Of the body of a request; a server's own default."""
ALL_BYTES = 1 << 30
"""Of all bodies together."""
LOOK_SECONDS = 0.25
"""From one look for clients that have left to the next."""
LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def connect(address: str) -> HTTPConnection:
    parts = urlsplit(address)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=SECONDS)


class Refused(Exception):
    """A request that the proxy does not pass on."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Exchange:
    """A client's connection, and those to servers that work for it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.since = time.monotonic()
        self.reading = True
        self.left = False
        self.size = 0
        self._servers: set[HTTPConnection] = set()
        self._lock = threading.Lock()

    def add(self, server: HTTPConnection) -> None:
        """Work for the client goes on at a server. Raises ``OSError`` where the client has left."""
        server.connect()
        with self._lock:
            if not self.left:
                self._servers.add(server)
                return
        server.close()
        raise ConnectionAbortedError("the client has left")

    def remove(self, server: HTTPConnection) -> None:
        with self._lock:
            self._servers.discard(server)
            server.close()

    def leave(self) -> None:
        """The client has left: end what servers do for it, which wakes the threads that wait for them."""
        with self._lock:
            self.left = True
            for server in self._servers:
                if server.sock is not None:
                    with suppress(OSError):
                        server.sock.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    """Bounds what clients may hold of the proxy, and notices those that leave."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[Proxy], hosts: frozenset[str]) -> None:
        self.hosts = hosts
        self.trusts_names = not is_loopback(address[0]) and not hosts
        self.prefills = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.exchanges: dict[socket.socket, Exchange] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self.exchanges) >= MOST_CONNECTIONS
            if not full:
                self.exchanges[request] = Exchange(request)
        if full:
            with suppress(OSError):
                request.send(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.exchanges.pop(request, None)
            super().shutdown_request(request)

    def reserve(self, exchange: Exchange, size: int) -> None:
        """Make room for a body. Raises ``Refused``."""
        with self._lock:
            if sum(one.size for one in self.exchanges.values()) + size > ALL_BYTES:
                raise Refused(503, "the proxy holds too many requests; try again later")
            exchange.size = size

    def service_actions(self) -> None:
        """Look for clients that have left, and for those that take too long to ask; called now and then."""
        overdue = time.monotonic() - READ_SECONDS
        poll = select.poll()
        with self._lock:
            known = {client.fileno(): exchange for client, exchange in self.exchanges.items() if client.fileno() >= 0}
            for exchange in known.values():
                if exchange.reading and exchange.since < overdue:
                    with suppress(OSError):
                        exchange.client.shutdown(socket.SHUT_RDWR)
                elif not exchange.reading:
                    poll.register(exchange.client, LEFT)
            gone = [known[descriptor] for descriptor, _ in poll.poll(0)]
        for exchange in gone:
            exchange.leave()


class Proxy(BaseHTTPRequestHandler):
    server: Server
    timeout = READ_SECONDS
    producers: Iterator[str]
    consumers: Iterator[str]
    told: dict[str, dict[str, Any]]
    """By producer, what it has last told of where its KV cache is handed on."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self._exchange = self.server.exchanges[self.connection]
        try:
            self._check_visitor()
            data = self._read_body()
        except Refused as refused:
            self._refuse(refused)
            return
        self._exchange.reading = False
        self.connection.settimeout(SECONDS)
        if self.command == "POST" and self.path in SHARED:
            data = self._share(data)
        self._forward(data)

    def _check_visitor(self) -> None:
        """Raises ``Refused`` for a name that is not the proxy's, and for what pages of other sites send."""
        host = (self.headers.get("host") or "").lower()
        name = (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).rstrip(".")
        hosts = self.server.hosts
        if not (self.server.trusts_names or "*" in hosts or not name or is_loopback(name) or name in hosts):
            raise Refused(403, f"the proxy is not known as {host[:64]!r}; name it with --allowed-hosts")
        origin = self.headers.get("origin")
        keyless = self.command == "POST" and "authorization" not in self.headers
        if keyless and origin is not None and urlsplit(origin).netloc.lower() != host:
            raise Refused(403, f"pages of {origin[:64]!r} may not use the proxy")
        if keyless and (self.headers.get("content-type") or "").lower().startswith("text/plain"):
            raise Refused(415, "a body of text/plain is not taken: send JSON as application/json")

    def _read_body(self) -> bytes:
        """Raises ``Refused`` for a body without a length, or over the limits."""
        if self.headers.get("transfer-encoding") is not None:
            raise Refused(411, "the proxy needs a Content-Length")
        lengths = set(self.headers.get_all("content-length") or ["0"])
        length = lengths.pop()
        if lengths or not (length.isascii() and length.isdigit()):
            raise Refused(400, "Content-Length must be one number")
        if len(length) > 12 or int(length) > MOST_BYTES:
            raise Refused(413, f"the body is over the limit of {MOST_BYTES >> 20} MiB")
        self.server.reserve(self._exchange, int(length))
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise Refused(400, "the body is shorter than its Content-Length")
        return data

    def _refuse(self, refused: Refused) -> None:
        body = json.dumps({"error": {"message": str(refused), "type": "invalid_request_error"}}).encode()
        self.close_connection = True
        with suppress(OSError):
            self.send_response(refused.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _share(self, data: bytes) -> bytes:
        """The body as the consumer gets it. What is no request is for that to refuse."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return data
        if not isinstance(body, dict):
            return data
        body.pop("kv_transfer_params", None)
        producer = next(self.producers)
        told = self.told.get(producer)
        if told is None:
            told = self._prefill(producer, body, self._headers())
        elif self.server.prefills.acquire(blocking=False):
            given = producer, body, self._headers()
            threading.Thread(target=self._prefill_beside, args=given, daemon=True).start()
            told = {**told, "remote_prefill_pending": True}
        else:
            told = None  # too many prompts are being computed: the consumer computes this one
        return json.dumps(body if told is None else {**body, "kv_transfer_params": told}).encode()

    def _prefill_beside(self, producer: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            self._prefill(producer, body, headers)
        finally:
            self.server.prefills.release()

    def _prefill(self, producer: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        """Have a producer compute the prompt; what the consumer is to be told, or None where that did not work. It is
        remembered until it is not told any more.
        """
        asked = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")}
        asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        if "max_completion_tokens" in asked:
            asked["max_completion_tokens"] = 1
        connection = connect(producer)
        try:
            self._exchange.add(connection)
            connection.request("POST", self.path, json.dumps(asked), headers)
            answer = connection.getresponse()
            told = json.load(answer).get("kv_transfer_params") if answer.status == 200 else None
        except (OSError, HTTPException, ValueError):
            told = None
        finally:
            self._exchange.remove(connection)
        if told is not None:
            self.told[producer] = told
        elif not self._exchange.left:
            self.told.pop(producer, None)
        return told

    def _forward(self, data: bytes) -> None:
        connection = connect(next(self.consumers))
        try:
            self._exchange.add(connection)
            connection.request(self.command, self.path, data or None, self._headers())
            self._send(connection.getresponse())
        except (OSError, HTTPException) as fault:
            self.close_connection = True
            if self._exchange.left:
                return
            self.log_error("%s: %s", type(fault).__name__, fault)
            if not self._begun:
                with suppress(OSError):
                    self.send_error(502, "no consumer answers")
        finally:
            self._exchange.remove(connection)

    _begun = False

    def _send(self, answer: HTTPResponse) -> None:
        """An answer as it comes; its end is that of the connection."""
        self._begun = True
        self.send_response(answer.status)
        for name in BACK:
            if (value := answer.headers.get(name)) is not None:
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(1 << 16):
            self.wfile.write(piece)

    def _headers(self) -> dict[str, str]:
        return {name: value for name in PASSED if (value := self.headers.get(name)) is not None}


def is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def make_server(host: str, port: int, producers: str, consumers: str, allowed_hosts: str = "") -> Server:
    """A server; lists of addresses and of names have commas between them."""
    turns = {"producers": itertools.cycle(producers.split(",")), "consumers": itertools.cycle(consumers.split(","))}
    hosts = frozenset(name.strip().lower() for name in allowed_hosts.split(",") if name.strip())
    return Server((host, port), type("Proxy", (Proxy,), {**turns, "told": {}}), hosts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", required=True)
    parser.add_argument("--consumers", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--allowed-hosts", default="", help="names it may be called by, beside localhost; * for any")
    given = parser.parse_args()
    server = make_server(given.host, given.port, given.producers, given.consumers, given.allowed_hosts)
    server.serve_forever(LOOK_SECONDS)


if __name__ == "__main__":
    main()
