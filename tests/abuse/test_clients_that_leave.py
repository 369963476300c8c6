"""A client closes its connection while its request is queued, prepared or computed. The work for it ends."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import string
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from PIL import Image

from suite.processes import children_of
from suite.server import Server
from suite.waiting import wait_until

pytestmark = [
    pytest.mark.xdist_group("leaving"),
    pytest.mark.skipif("LSV_PLATFORM" in os.environ, reason="the API process is the same on every platform"),
]

SECONDS = 1.0
"""Seconds from the close until all work for the client has ended."""
BUSY = 1.0
"""Extra seconds for a busy machine."""
SIZES = {"1 kB": 1_000, "60 kB": 60_000, "70 kB": 70_000, "8 MB": 8_000_000}
"""Sanic reads 64 KiB ahead of a handler."""
LONG = {"max_tokens": 1500, "ignore_eos": True}
MEDIA = "lsv_multimodal.worker.main"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = "--max-num-seqs", "4", "--max-num-batched-tokens", "4"  # a prompt takes hundreds of steps
    running = Server(tmp_path_factory.mktemp("leaving") / "server.log", "lsv-demo", *options)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def words(size: int) -> list[str]:
    """Texts with different prefixes, for a body of ``size`` bytes."""
    draw = Random(size).choices
    return ["".join(draw(string.ascii_lowercase + " ", k=800)) for _ in range(max(1, min(size // 1000 - 2, 1000)))]


def large_picture(width: int, height: int) -> dict[str, Any]:
    """A content part of a few kB whose picture takes long to decode."""
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "WEBP", lossless=True)
    url = f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def make_request(phase: str, size: int) -> tuple[str, dict[str, Any]]:
    """A path and a body of at most ``size`` bytes that keep a server busy in a phase."""
    match phase:
        case "queued":
            return "/v1/completions", {"prompt": ["Mira"] * 64, **LONG}
        case "prompt":
            return "/v1/completions", {"prompt": words(size), "max_tokens": 1}
        case "answer":
            return "/v1/completions", {"prompt": "Mira", "n": 16, "seed": 1, **LONG}
        case "pooling":
            return "/v1/embeddings", {"input": words(size)}
        case "beams":
            return "/v1/completions", {"prompt": "Mira", "n": 16, "use_beam_search": True, **LONG}
    assert phase == "media"
    parts = [large_picture(7000 + wider, height) for wider, height in enumerate((8800, 8800, 3500, 3500))]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}


def rows(server: Server) -> float:
    """Rows that the engine holds."""
    lines = server.get("/metrics")[1].decode().splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


def media_seconds(server: Server) -> float:
    """Processor seconds of the running side processes for media."""
    ticks = 0
    for worker in children_of(server.process.pid, MEDIA):
        with suppress(OSError):  # it has ended since
            fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rests(server: Server) -> bool:
    """Whether no side process for media uses the processor."""
    before = media_seconds(server)
    time.sleep(0.1)
    return media_seconds(server) <= before


def connect(server: Server, path: str, body: bytes, *lines: str) -> socket.socket:
    """A connection that has sent a request."""
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    end = socket.create_connection(("127.0.0.1", server.port), 20)
    end.sendall("\r\n".join((*head, f"Content-Length: {len(body)}", "", "")).encode() + body)
    return end


NEVER_STREAMED = {"pooling", "beams"}
MATRIX = [
    (phase, streamed, size)
    for phase in ("queued", "prompt", "answer", "media", "pooling", "beams")
    for streamed in (False, True)
    for size in SIZES
    if not (streamed and phase in NEVER_STREAMED)
    and not (phase == "media" and size == "1 kB")  # no picture of 1 kB takes long
]


@pytest.mark.row("F-090")
@pytest.mark.daily(size=("70 kB",), streamed=(False,))
@pytest.mark.parametrize(("phase", "streamed", "size"), MATRIX)
def test_a_client_that_leaves_is_noticed(server: Server, phase: str, streamed: bool, size: str) -> None:
    path, asked = make_request(phase, SIZES[size])
    body = json.dumps({**asked, "stream": True} if streamed else asked).encode()
    idle = (lambda: rests(server)) if phase == "media" else (lambda: not rows(server))
    wait_until(idle)
    with connect(server, path, body.ljust(SIZES[size])):
        wait_until(lambda: not idle())
    left = time.monotonic()
    wait_until(idle)
    assert time.monotonic() - left < SECONDS + BUSY


def test_a_client_with_a_chunked_body_is_noticed(server: Server) -> None:
    body = json.dumps(make_request("answer", 1000)[1]).encode().ljust(100_000)
    with socket.create_connection(("127.0.0.1", server.port), 20) as end:
        end.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        end.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        wait_until(lambda: rows(server))
    left = time.monotonic()
    wait_until(lambda: not rows(server))
    assert time.monotonic() - left < SECONDS + BUSY


@pytest.mark.parametrize("leaves", [False, True])
def test_pipelined_requests_do_not_hide_a_disconnect(server: Server, leaves: bool) -> None:
    """A client pipelines more than the server reads ahead. It gets no answer, even if it stays connected."""
    body = json.dumps(make_request("answer", 1000)[1]).encode()
    with connect(server, "/v1/completions", body) as end:
        wait_until(lambda: rows(server))
        with suppress(ConnectionError):
            end.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4000)
            if not leaves:
                assert end.recv(1) == b""
    left = time.monotonic()
    wait_until(lambda: not rows(server))
    assert time.monotonic() - left < SECONDS + BUSY


def test_a_few_pipelined_requests_are_answered(server: Server) -> None:
    body = json.dumps({"prompt": "Mira", "max_tokens": 40, "ignore_eos": True}).encode()
    answers = b""
    with connect(server, "/v1/completions", body) as end:
        end.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while piece := end.recv(1 << 16):
            answers += piece
    assert answers.count(b"HTTP/1.1 200 OK") == 2
