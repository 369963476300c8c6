#!/usr/bin/env python3
"""A small proxy before servers that share requests: each prompt goes to a producer, which computes it, and a consumer.

    proxy.py --producers http://10.0.0.1:8000 --consumers http://10.0.0.2:8000,http://10.0.0.3:8000 --port 9000

Servers of one kind take turns. The first answer of a producer tells where it hands its KV cache on; from then on
consumers are asked at the same time and fetch what it computes as it comes. Where no producer answers, the consumer
computes the prompt itself. Needs nothing but Python. Proxies of vLLM's kind, which wait for the producer, work as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SHARED = ("/v1/completions", "/v1/chat/completions")
PASSED = ("authorization", "content-type", "traceparent", "x-request-id")
BACK = ("content-type", "retry-after", "x-request-id")
SECONDS = 600


def connect(address: str) -> HTTPConnection:
    parts = urlsplit(address)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=SECONDS)


def prefill(address: str, path: str, body: dict, headers: dict[str, str]) -> dict | None:
    """Have a producer compute the prompt; what the consumer is to be told, or None where that did not work."""
    asked = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")}
    asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    connection = connect(address)
    try:
        connection.request("POST", path, json.dumps(asked), headers)
        answer = connection.getresponse()
        return json.load(answer).get("kv_transfer_params") if answer.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


class Proxy(BaseHTTPRequestHandler):
    producers: Iterator[str]
    consumers: Iterator[str]
    told: dict[str, dict]
    """By producer, what it has last told of where its KV cache is handed on."""

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path in SHARED:
            data = self._share(data)
        self._forward(data)

    def _share(self, data: bytes) -> bytes:
        """The body as the consumer gets it. What is no request is for that to refuse."""
        try:
            body = json.loads(data)
        except ValueError:
            return data
        if not isinstance(body, dict):
            return data
        body.pop("kv_transfer_params", None)
        producer = next(self.producers)
        told = self.told.get(producer)
        if told is None:
            told = self._prefill(producer, body, self._headers())
        else:
            threading.Thread(target=self._prefill, args=(producer, body, self._headers()), daemon=True).start()
            told = {**told, "remote_prefill_pending": True}
        return json.dumps(body if told is None else {**body, "kv_transfer_params": told}).encode()

    def _prefill(self, producer: str, body: dict, headers: dict[str, str]) -> dict | None:
        """As ``prefill``; what is told is remembered, until it is not told any more."""
        told = prefill(producer, self.path, body, headers)
        if told is None:
            self.told.pop(producer, None)
        else:
            self.told[producer] = told
        return told

    def _forward(self, data: bytes) -> None:
        connection = connect(next(self.consumers))
        try:
            connection.request(self.command, self.path, data or None, self._headers())
            self._send(connection.getresponse())
        except (OSError, HTTPException) as fault:
            self.log_error("%s: %s", type(fault).__name__, fault)
            self.close_connection = True
            if not self._begun:
                self.send_error(502, "no consumer answers")
        finally:
            connection.close()

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


def make_server(host: str, port: int, producers: str, consumers: str) -> ThreadingHTTPServer:
    """A server; lists of addresses have commas between them."""
    turns = {"producers": itertools.cycle(producers.split(",")), "consumers": itertools.cycle(consumers.split(","))}
    return ThreadingHTTPServer((host, port), type("Proxy", (Proxy,), {**turns, "told": {}}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", required=True)
    parser.add_argument("--consumers", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    given = parser.parse_args()
    make_server(given.host, given.port, given.producers, given.consumers).serve_forever()


if __name__ == "__main__":
    main()
