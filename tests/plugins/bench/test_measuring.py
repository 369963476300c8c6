"""The load generator against a small server, offline measurements over a fake worker, servers that do not start."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lsv import LLM
from lsv.engine.engine import Engine
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import Unavailable
from lsv_bench.datasets import Conversation, Sample, random_samples
from lsv_bench.load import Target, run_load
from lsv_bench.offline import measure_latency, measure_throughput, run_batch
from lsv_bench.server import OwnServer
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.text import letters

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}


def stream(*events: object) -> bytes:
    return HEAD + b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


THREE = stream(*({"choices": [{"text": text}]} for text in ("a", "", "c")), USAGE)


@asynccontextmanager
async def serving(answer: Callable[[str, dict[str, object]], bytes], together: int = 1) -> AsyncIterator[Target]:
    """A server that answers by path and body once ``together`` requests are open."""
    waiting, full = 0, asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:"))
        body = json.loads(await reader.readexactly(length))
        waiting += 1
        if waiting >= together:
            full.set()
        await full.wait()
        writer.write(answer(head.split()[1], body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield Target(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", model="m")


def changed(target: Target, **changes: object) -> Target:
    import msgspec

    return msgspec.structs.replace(target, **changes)


async def test_tokens_and_requests_are_counted() -> None:
    done: list[int] = []
    samples = random_samples(6, 4, 3, vocab=100)
    async with serving(lambda path, body: THREE, together=4) as target:
        found = await run_load(target, samples, [0.0] * 6, concurrency=4, done=lambda: done.append(1))
    assert len(done) == 6
    assert found.peak == 4
    for outcome in found.outcomes:
        assert outcome.error is None
        assert (outcome.input_tokens, outcome.cached_tokens, outcome.output_tokens) == (4, 2, 3)
        assert len(outcome.gaps) == 2
        assert 0 < outcome.ttft <= outcome.e2el <= found.seconds


async def test_concurrency_bounds_what_is_open() -> None:
    async with serving(lambda path, body: THREE) as target:
        found = await run_load(target, random_samples(5, 4, 3, vocab=100), [0.0] * 5, concurrency=1, done=lambda: None)
    assert found.peak == 1


async def test_a_chat_is_sent_as_messages_and_its_role_is_no_token() -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    deltas = ({"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"})
    events = [{"choices": [{"delta": delta}]} for delta in deltas]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}

    def answer(path: str, body: dict[str, object]) -> bytes:
        seen.append((path, body))
        return stream(*events, end)

    samples = [Sample("Hello", 7), Sample(Conversation(({"role": "system", "content": "x"},)), 7)]
    async with serving(answer) as target:
        target = changed(target, endpoint="chat", ignore_eos=False, extra_body={"priority": 3})
        found = await run_load(target, samples, [0.0, 0.0], concurrency=1, done=lambda: None)
    assert [outcome.output_tokens for outcome in found.outcomes] == [2, 2], "without usage, chunks are counted"
    assert [len(outcome.gaps) for outcome in found.outcomes] == [1, 1]
    assert {path for path, _ in seen} == {"/v1/chat/completions"}
    assert [body["messages"] for _, body in seen] == [
        [{"role": "user", "content": "Hello"}], [{"role": "system", "content": "x"}],
    ]  # fmt: skip
    assert all(body["priority"] == 3 and body["max_tokens"] == 7 and "ignore_eos" not in body for _, body in seen)


REFUSAL = b'{"error": {"message": "too long"}}'


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL), "400: too long"),
        (stream({"choices": [{"text": "a"}]}, {"error": {"message": "died"}}), "died"),
        (HEAD + b"data: {broken\n\n", "JSON"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", ""),
        (stream(), "no token"),
        (b"", ""),
    ],
)
async def test_failures_are_outcomes(reply: bytes, why: str) -> None:
    async with serving(lambda path, body: reply) as target:
        found = await run_load(target, [Sample("x", 1)], [0.0], concurrency=1, done=lambda: None)
    (outcome,) = found.outcomes
    assert outcome.error
    assert why.lower() in outcome.error.lower()


async def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    async with serving(lambda path, body: THREE) as target:
        pass
    found = await run_load(target, [Sample("x", 1)] * 2, [0.0, 0.0], concurrency=2, done=lambda: None)
    assert all(outcome.error for outcome in found.outcomes)


@pytest.fixture
def llm() -> LLM:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = letters(97, templates={"default": template})
    return LLM.from_engine(Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts), tokenizer)


def test_a_batch_is_answered_in_full_length(llm: LLM) -> None:
    samples = [Sample((11, 12, 13), 5), Sample("Hello", 2), Sample(Conversation(({"role": "u", "content": "Hi"},)), 1)]
    batch = run_batch(llm, samples)
    assert (batch.input_tokens, batch.output_tokens) == (3 + 5 + 2, 8)
    assert len(batch.ttft) == 3
    assert 3 <= batch.early <= 8
    assert 0 < max(batch.ttft) <= batch.seconds
    assert not llm.llm_engine.has_unfinished_requests()


def test_latency_counts_measured_rounds_only(llm: LLM) -> None:
    done: list[int] = []
    samples = random_samples(2, 4, 6, vocab=90)
    found = measure_latency(llm, samples, warmup=2, rounds=3, done=lambda: done.append(1))
    assert len(done) == 5
    assert (found["rounds"], found["batch_size"], found["output_tokens"]) == (3, 2, 12)
    assert found["decode_tokens_per_s"] > 0


def test_throughput_adds_up(llm: LLM) -> None:
    samples = random_samples(3, 4, 6, vocab=90)
    for _ in range(2):
        found = measure_throughput(llm, samples)
        assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (3, 12, 18)
        assert found["cached_tokens"] == 0, "an earlier round left its cache"
        assert found["total_tokens_per_s"] * found["seconds"] == pytest.approx(30)


def test_a_server_that_ends_says_why() -> None:
    script = "print('no such model'); raise SystemExit(2)"
    with (
        OwnServer([sys.executable, "-c", script], "http://127.0.0.1:9/v1") as server,
        pytest.raises(Unavailable, match="ended before it was ready: no such model"),
    ):
        server.wait_until_ready(60)


def test_a_server_that_is_slow_is_ended() -> None:
    script = "import signal; signal.pause()"
    with OwnServer([sys.executable, "-S", "-c", script], "http://127.0.0.1:9/v1") as server:
        with pytest.raises(Unavailable, match="not ready after 0 s"):
            server.wait_until_ready(0)
        process = server._process
    assert process is not None
    assert process.code == -15


def test_a_command_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Unavailable, match="can't be started"), OwnServer(["/no/such/command"], "http://x/v1"):
        pass
