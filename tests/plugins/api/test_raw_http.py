"""Requests of proxies and older clients: HTTP/1.0, trailers of chunked bodies, slashes at the end of paths."""

from __future__ import annotations

import asyncio
import json

import pytest

from suite.sites import Site

BODY = json.dumps({"prompt": "Hi", "max_tokens": 3}).encode()
STREAM = json.dumps({"prompt": "Hi", "max_tokens": 3, "stream": True}).encode()
LAST = b"0\r\n"


async def talk(site: Site, *pieces: bytes) -> tuple[bytes, bytes]:
    """Send pieces one after another; returns head and body of the answer, up to the end of the connection."""
    host, port = site.server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
        return head.lower(), body
    finally:
        writer.close()
        await writer.wait_closed()


def ask(version: str, *lines: str, path: str = "/v1/completions") -> bytes:
    head = (f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *lines)
    return "\r\n".join((*head, "", "")).encode()


def chunked(*lines: str) -> bytes:
    return ask("1.1", "Transfer-Encoding: chunked", *(lines or ("Connection: close",)))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_a_stream_to_http_1_0_has_no_chunks(site: Site):
    head, body = await talk(site, ask("1.0", f"Content-Length: {len(STREAM)}") + STREAM)
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    events = body.decode().strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"


async def test_a_connection_that_is_to_stay_ends_with_such_a_stream(site: Site):
    head, body = await talk(site, ask("1.0", f"Content-Length: {len(STREAM)}", "Connection: keep-alive") + STREAM)
    assert b"connection: close" in head
    assert body.endswith(b"data: [DONE]\n\n")


async def test_whole_answers_to_http_1_0_have_a_length(site: Site):
    head, body = await talk(site, ask("1.0", f"Content-Length: {len(BODY)}") + BODY)
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["object"] == "text_completion"


@pytest.mark.parametrize("trailers", [b"X-Check: 1\r\n", b"X-Check: 1\r\nX-Other: 2\r\n", b""])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_trailers_are_passed_over(site: Site, trailers: bytes, size: int):
    sent = chunk(BODY) + LAST + trailers + b"\r\n"
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    head, body = await talk(site, chunked(), *pieces)
    assert head.startswith(b"http/1.1 200")
    assert json.loads(body)["object"] == "text_completion"


async def test_no_trailer_becomes_a_request(site: Site):
    """The next request on the connection is the one after the trailers."""
    second = ask("1.1", f"Content-Length: {len(BODY)}", "Connection: close") + BODY
    smuggled = b"X: GET /nope HTTP/1.1\r\n"
    _, body = await talk(site, chunked("Connection: keep-alive") + chunk(BODY) + LAST + smuggled + b"\r\n" + second)
    assert body.count(b"HTTP/1.1 200") == 1
    assert body.count(b'"text_completion"') == 2


@pytest.mark.parametrize(
    "trailers",
    [b"no name\r\n", b"X: " + b"y" * 20_000, b"X: y\r\n" * 2000],
    ids=["nameless", "one long", "many"],
)
async def test_trailers_that_are_damaged_or_long_are_refused(site: Site, trailers: bytes):
    head, _ = await talk(site, chunked() + chunk(BODY) + LAST + trailers + b"\r\n")
    assert head.split()[1] == b"400"
    assert (await site.complete()).status_code == 200


@pytest.mark.parametrize("path", ["/health/", "/v1/models/", "/ready/", "/v1/models/fake/"])
async def test_a_slash_at_the_end_of_a_path(site: Site, path: str):
    assert (await site.http.get(site.server.address + path)).status_code == 200


async def test_a_slash_at_the_end_of_a_generation_route(site: Site):
    reply = await site.http.post(site.server.address + "/v1/completions/", json=json.loads(BODY))
    assert reply.status_code == 200
    assert reply.json()["object"] == "text_completion"
