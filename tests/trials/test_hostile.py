"""The soak's hostile visitors work, and distinguish a refusal from a fault."""

from __future__ import annotations

import asyncio
import stat
from random import Random
from types import SimpleNamespace

import httpx2
import pytest

from trials.soak import hostile
from trials.soak.hostile import GapWatch, HostileVisits, make_adapters
from trials.soak.visits import Failed, Wrong


def answering(status: int, text: str = "abba") -> httpx2.AsyncClient:
    answer = {"choices": [{"text": text}]}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, json=answer))
    return httpx2.AsyncClient(base_url="http://server", transport=transport)


def test_adapters_are_what_their_names_say(tmp_path):
    found = make_adapters(tmp_path)
    assert stat.S_ISFIFO((found["pipes"] / "adapter_config.json").stat().st_mode)
    assert (found["endless"] / "adapter_config.json").readlink().as_posix() == "/dev/zero"
    about = (found["huge"] / "adapter_model.safetensors").stat()
    assert (about.st_size, about.st_blocks) == (1 << 40, 0)
    assert make_adapters(tmp_path) == found, "a second run finds them"


@pytest.mark.parametrize(("status", "expected"), [(400, None), (200, Wrong), (500, Failed)])
async def test_an_adapter_that_is_loaded_is_wrong(tmp_path, status, expected):
    visit = HostileVisits(tmp_path).kinds["hostile adapter"][1]
    async with answering(status) as http:
        if expected is None:
            await visit(http, Random(1))
        else:
            with pytest.raises(expected):
                await visit(http, Random(1))


@pytest.mark.parametrize(("status", "text", "expected"), [(200, "abba", None), (400, "", None), (200, "xyz", Wrong)])
async def test_an_ambiguous_grammar_is_followed_or_refused(tmp_path, status, text, expected):
    visit = HostileVisits(tmp_path).kinds["ambiguous grammar"][1]
    async with answering(status, text) as http:
        if expected is None:
            await visit(http, Random(1))
        else:
            with pytest.raises(expected):
                await visit(http, Random(1))


async def test_a_large_body_is_sent_whole_and_left(tmp_path):
    received, ended = bytearray(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            received.extend(data)
        writer.close()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = SimpleNamespace(base_url=httpx2.URL(f"http://127.0.0.1:{port}"))
    await HostileVisits(tmp_path).kinds["left large body"][1](http, Random(1))
    await asyncio.wait_for(ended.wait(), 10)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert len(body) > 1 << 16
    server.close()


async def test_the_longest_gap_is_found(monkeypatch):
    clock = iter([0.0, 0.5, 3.0, 3.1])
    monkeypatch.setattr(hostile, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = GapWatch("http://server")
    lines = "".join('data: {"choices": []}\n\n' for _ in range(4))
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, text=f"{lines}data: [DONE]\n\n"))
    async with httpx2.AsyncClient(base_url="http://server", transport=transport) as http:
        await watch._listen(http, {})
    assert (watch.worst, watch.tokens) == (2.5, 4)
