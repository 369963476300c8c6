"""Benchmark arithmetic, data and the load generator against a small server."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from lsv.bench.datasets import random_samples, sharegpt_samples
from lsv.bench.load import Load, press
from lsv.bench.report import percentile, spread
from lsv.errors import ConfigError, Unavailable


def test_percentiles_are_nearest_rank():
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) == 0.0
    assert spread("ttft", [0.1, 0.3])["ttft_mean_ms"] == pytest.approx(200.0)


def test_random_samples_are_seeded_and_of_the_asked_length():
    first = random_samples(5, 32, 8, vocab=500, spread=0.0, seed=1)
    assert first == random_samples(5, 32, 8, vocab=500, spread=0.0, seed=1)
    assert all(len(sample.prompt) == 32 and sample.output_len == 8 for sample in first)
    varied = random_samples(50, 100, 100, vocab=500, spread=0.5, seed=1)
    assert all(50 <= len(sample.prompt) <= 150 for sample in varied)
    assert len({len(sample.prompt) for sample in varied}) > 10


def test_sharegpt_files_are_read_and_refused(tmp_path):
    good = tmp_path / "good.json"
    good.write_text(json.dumps([{"conversations": [{"from": "human", "value": "Hello"}]}]))
    assert [sample.prompt for sample in sharegpt_samples(str(good), 3, 5, seed=0)] == ["Hello"] * 3
    for text in ("{", "[]", '[{"conversations": [1]}]'):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        with pytest.raises(ConfigError):
            sharegpt_samples(str(bad), 1, 5, seed=0)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that streams three tokens, 20 ms apart, to every request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    await reader.readexactly(length)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for number in range(3):
        event = {"choices": [{"text": str(number)}]}
        writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
    writer.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
    await writer.drain()
    writer.close()


def load_on(port: int, **changes: float | int) -> Load:
    options = {"rate": math.inf, "concurrency": 4, **changes}
    return Load(f"http://127.0.0.1:{port}/v1", "m", ignore_eos=True, api_key=None, seed=0, **options)


async def test_the_load_generator_counts_what_it_sees():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    done = []
    async with server:
        samples = random_samples(6, 4, 3, vocab=100, spread=0.0, seed=0)
        figures = await press(load_on(server.sockets[0].getsockname()[1]), samples, lambda: done.append(1))
    assert len(done) == 6
    assert (figures["requests"], figures["errors"]) == (6, 0)
    assert (figures["input_tokens"], figures["output_tokens"]) == (24, 18)
    assert figures["itl_p50_ms"] >= 15
    assert figures["seconds"] >= 0.1, "four at a time take two rounds"


async def test_a_server_that_is_not_there_is_an_error():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unavailable, match="no request succeeded"):
        await press(load_on(port), random_samples(1, 4, 3, vocab=100, spread=0.0, seed=0), lambda: None)
