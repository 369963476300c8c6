"""How long an honest stream stands still while somebody sends requests at the limits of what is taken, and beyond.

    python benchmarks/abuse.py [--model lsv-demo] [--only salt ids] [--repeats 1] [-- more options of lsv serve]
    python benchmarks/abuse.py --url http://127.0.0.1:8000/v1 --pid 4711

One stream decodes greedily. For each attack the longest gap between two of its events is taken while nothing else
happens and again while the attack runs, with the attack's status and seconds. Attacks come in pairs where there is a
limit: the largest that is taken, and the smallest that is refused. ``--pid`` names the API process of a running
server, whose peak memory is shown at the end. Limits are read as the server's defaults; the aim is no gap beyond
100 ms and two steps, on an idle machine. A step is what an honest prompt that fills the context makes the stream wait
for. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import http.client
import json
import os
import re
import signal
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lsv_api.limits import Limits
from lsv_bench.machine import describe_machine
from lsv_bench.server import OwnServer

READY_SECONDS = 120.0
QUIET_SECONDS = 2.0
"""How long the stream is watched alone before each attack."""
SETTLE_SECONDS = 0.5
"""How long it is watched after one: what was put into the engine may be felt later."""
ANSWER_SECONDS = 120.0
AIM_SECONDS = 0.1
STEPS = 2
WORDS = "lorem ipsum dolor sit amet "
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMITS = Limits()


@dataclass(frozen=True)
class Attack:
    """A request. Bodies are made when they are sent; a sender of its own says how."""

    name: str
    path: str
    body: Callable[[], bytes]
    send: Callable[[Server, bytes], Awaitable[str]] | None = None


@dataclass(frozen=True)
class Result:
    """What an attack came to; gaps in ms."""

    name: str
    size: int
    status: str
    seconds: float
    quiet: float
    gap: float
    step: float

    @property
    def within(self) -> bool:
        return self.gap <= 1000 * AIM_SECONDS + STEPS * self.step


class Server:
    """Where a server is, and one request at a time to it."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.prefix = parts.path.removesuffix("/v1")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def request(self, path: str, body: bytes) -> bytes:
        named = {"Host": f"{self.host}:{self.port}", "Connection": "close", "Content-Length": len(body), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"POST {self.prefix}{path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def post(self, request: bytes) -> str:
        """The status of the answer, and its error's code. Blocks."""
        answer = b""
        try:
            with socket.create_connection((self.host, self.port), ANSWER_SECONDS) as sock:
                with suppress(ConnectionError):  # a refusal may come before all is sent
                    sock.sendall(request)
                while piece := sock.recv(1 << 16):
                    answer = (answer + piece)[:4096]
        except (ConnectionError, TimeoutError) as error:
            return status_of(answer) if answer else type(error).__name__
        return status_of(answer)

    def ask(self, path: str, body: bytes) -> bytes:
        """The body of a small answer. Blocks."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_SECONDS)
        with closing(connection):
            connection.request("POST", self.prefix + path, body, self.headers)
            return connection.getresponse().read()


def status_of(answer: bytes) -> str:
    if not answer:
        return "no answer"
    status = answer.split(b" ", 2)[1].decode()
    code = re.search(rb'"code":"(\w+)"', answer)
    return f"{status} {code[1].decode()}" if code else status


class Stream(asyncio.Protocol):
    """Honest streams one after the other; looks at the clock, no more."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.opened = time.perf_counter()
        self.last = 0.0
        self.gaps: list[tuple[float, float]] = []
        """When events came, and how long after the ones before."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"data: " in data:
            now = time.perf_counter()
            if self.last:
                self.gaps.append((now, now - self.last))
            self.last = now

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Honest:
    """A stream that begins anew when it ends, and the gaps of all of them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: list[Stream] = []

    async def run(self) -> None:
        asked = [{"role": "user", "content": "Tell me a story."}]
        body = compact(messages=asked, stream=True, max_tokens=500, temperature=0, ignore_eos=True)
        request = self._server.request(CHATS, body)
        while True:
            make = functools.partial(Stream, request)
            transport, stream = await asyncio.get_running_loop().create_connection(
                make, self._server.host, self._server.port
            )
            self._streams.append(stream)
            try:
                await stream.ended
            finally:
                transport.close()

    def since(self, began: float) -> list[float]:
        """Gaps that ended after ``began``, in ms, and the one that has not ended yet."""
        found = [1000 * gap for stream in self._streams for at, gap in stream.gaps if at >= began]
        latest = self._streams[-1].last or self._streams[-1].opened
        return [*found, 1000 * (time.perf_counter() - max(began, latest))]


def compact(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def chat(content: Any = "hi", **fields: Any) -> bytes:
    return compact(messages=[{"role": "user", "content": content}], max_tokens=1, **fields)


def completion(prompt: Any = "hi", **fields: Any) -> bytes:
    return compact(prompt=prompt, **{"max_tokens": 1, **fields})


def filled(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    """As many pieces as make a body of ``size`` bytes."""
    return before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def words(size: int) -> str:
    return (WORDS * (size // len(WORDS) + 1))[:size]


def nested(levels: int) -> bytes:
    """A completion with a field of ``levels``, the body itself among them."""
    return b'{"prompt":"hi","max_tokens":1,"metadata":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def make_attacks() -> Iterator[Attack]:
    """The list. Pairs are (the largest that is taken, the smallest that is not)."""
    limits, text, uncut = LIMITS, LIMITS.text_bytes, words(LIMITS.uncut)
    yield from (
        Attack("text of 1 MB", COMPLETIONS, lambda: completion(words(1_000_000))),
        Attack("text at the limit", COMPLETIONS, lambda: completion(words(text - 100))),
        Attack("text over the limit", COMPLETIONS, lambda: completion(words(text + 1))),
        Attack("text to truncate, 1 MB", COMPLETIONS, lambda: completion(uncut, truncate_prompt_tokens=9)),
        Attack("text to tokenise, 1 MB", "/tokenize", lambda: compact(prompt=uncut, return_token_strs=True)),
        Attack("ids to detokenise, 1M", "/detokenize", lambda: compact(tokens=[7] * (limits.values - 9))),
        Attack("chat of 1 MB", CHATS, lambda: chat(words(1_000_000))),
        Attack("documents of 8 MB", CHATS, lambda: chat(documents=[{"text": words(text - 200)}])),
        Attack("reasoning of 8 MB", CHATS, lambda: conversation(1, reasoning_content=words(text - 200))),
    )
    for count in (limits.messages, limits.messages + 1):
        yield Attack(f"{count} messages", CHATS, functools.partial(conversation, count))
    for count in (limits.prompts, limits.prompts + 1):
        yield Attack(f"{count} short prompts", COMPLETIONS, lambda count=count: completion(["hello there"] * count))
    yield from (
        Attack("400 prompts of 20 kB", COMPLETIONS, lambda: completion([words(20_000)] * 400)),
        Attack(
            "400 of 20 kB to truncate", COMPLETIONS, lambda: completion([words(20_000)] * 400, truncate_prompt_tokens=1)
        ),
        Attack("200 prompts x n=128", COMPLETIONS, lambda: completion(["hi"] * 200, n=128, temperature=1)),
        Attack("8 prompts x n=128", COMPLETIONS, lambda: completion(["hi"] * 8, n=128, temperature=1)),
        Attack("1024 texts to embed", "/v1/embeddings", lambda: compact(input=["hello there"] * 1024)),
        Attack("64 unknown fields", COMPLETIONS, lambda: completion(**{f"f{n:06d}": 1 for n in range(64)})),
        Attack("20,000 unknown fields", COMPLETIONS, lambda: completion(**{f"f{n:06d}": 1 for n in range(20_000)})),
    )
    yield from parameter_attacks()
    yield from json_attacks()
    yield from (
        Attack("30 MB of base64", CHATS, lambda: picture(30_000_000)),
        Attack("40 MB of base64", CHATS, lambda: picture(40_000_000)),
        Attack("500 slow writers", CHATS, chat, send=write_slowly),
        Attack("64 readers who do not read", CHATS, stream_of_logprobs, send=never_read),
    )


def parameter_attacks() -> Iterator[Attack]:
    """Fields of a request at their limits."""
    matching = {"logit_bias": {"35": 100}, "max_tokens": 500}  # one letter for ever, which stops nearly match
    stops = ["#" * 1000 + chr(0x100 + number) for number in range(64)]
    yield from (
        Attack("64 stops of 1 kB", COMPLETIONS, lambda: completion(stop=stops, **matching)),
        Attack("65 stops", COMPLETIONS, lambda: completion(stop=[*stops, "x"])),
        Attack("a stop of 240 kB", COMPLETIONS, lambda: completion(stop=["#" * 240_000 + "x"], **matching)),
        Attack("bad words at the limit", COMPLETIONS, lambda: completion(bad_words=["lorem"] * 128, max_tokens=50)),
        Attack("bad words of 11 MB", COMPLETIONS, lambda: completion(bad_words=[words(90_000)] * 64)),
        Attack("all ids allowed", COMPLETIONS, lambda: completion(allowed_token_ids=list(range(1024)), max_tokens=50)),
        Attack("a million ids allowed", COMPLETIONS, lambda: completion(allowed_token_ids=[5] * 1_000_000)),
        Attack(
            "a million ids stop", COMPLETIONS,
            lambda: completion(stop_token_ids=[5] * 1_000_000, min_tokens=19, max_tokens=20),
        ),
        Attack("salt of 1 kB", COMPLETIONS, lambda: completion([7] * 1900, cache_salt="s" * 1024)),
        Attack("salt of 7 MB", COMPLETIONS, lambda: completion([7] * 1900, cache_salt="s" * 7_000_000)),
        Attack("salt of 32 MB", COMPLETIONS, lambda: completion([7] * 1900, cache_salt="s" * 32_000_000)),
    )  # fmt: skip


def json_attacks() -> Iterator[Attack]:
    """Bodies that are long to parse."""
    limits, text = LIMITS, LIMITS.text_bytes
    start, chat_start = b'{"max_tokens":1,"prompt":[', b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
    yield from (
        Attack("a million ids", COMPLETIONS, lambda: filled(start, b"1,", b"1]}", 2 * limits.values)),
        Attack("8 MB of ids", COMPLETIONS, lambda: filled(start, b"1,", b"1]}", text)),
        Attack("8 MB of lists", COMPLETIONS, lambda: filled(start, b"[],", b"[]]}", text)),
        Attack("32,000 lists", COMPLETIONS, lambda: filled(start, b"[],", b"[]]}", 3 * 32_000)),
        Attack("8 MB of parts", CHATS, lambda: filled(chat_start + b'"metadata":[', b'{"data":""},', b"1]}", text)),
        Attack("8 MB of documents", CHATS, lambda: filled(chat_start + b'"documents":[', b'{"a":[]},', b"{}]}", text)),
        Attack(
            "16,000 documents", CHATS, lambda: filled(chat_start + b'"documents":[', b'{"a":[]},', b"{}]}", 144_000)
        ),
        Attack("8 MB of escapes", COMPLETIONS, lambda: completion('"\\' * (text // 4 - 50))),
    )
    for levels in (limits.nesting, limits.nesting + 1, 100_000):
        yield Attack(f"{levels} levels", COMPLETIONS, functools.partial(nested, levels))


def conversation(count: int, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": ""}] * (count - 1) + [{"role": "user", "content": "hi", **fields}]
    return compact(messages=messages, max_tokens=1)


def picture(size: int) -> bytes:
    data = base64.b64encode(os.urandom(size * 3 // 4)).decode()
    return chat([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}])


def stream_of_logprobs() -> bytes:
    asked = [{"role": "user", "content": "hi"}]
    return compact(messages=asked, stream=True, max_tokens=500, ignore_eos=True, logprobs=True, top_logprobs=20)


async def write_slowly(server: Server, request: bytes) -> str:
    """Many connections that each send the end of a body byte by byte, and leave."""
    opened = [await asyncio.open_connection(server.host, server.port) for _ in range(500)]
    for place in range(-20, -10):
        for _, writer in opened:
            writer.write(request[:place] if place == -20 else request[place - 1 : place])
        await asyncio.sleep(0.2)
    for _, writer in opened:
        writer.transport.abort()
    return "left"


async def never_read(server: Server, request: bytes) -> str:
    """Streams whose readers have small buffers and read nothing, and leave."""
    opened = []
    for _ in range(64):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (server.host, server.port))
        await asyncio.get_running_loop().sock_sendall(sock, request)
        opened.append(sock)
    await asyncio.sleep(10)
    for sock in opened:
        sock.close()
    return "left"


async def measure(server: Server, options: argparse.Namespace) -> list[Result]:
    honest = Honest(server)
    stream = asyncio.create_task(honest.run())
    await asyncio.to_thread(server.post, server.request(CHATS, chat()))
    step = await measure_step(server, honest)
    results = []
    for attack in make_attacks():
        if not options.only or any(word in attack.name for word in options.only):
            found = [await measure_one(server, honest, attack, step) for _ in range(options.repeats)]
            results.append(max(found, key=lambda result: result.gap))
            show(results[-1])
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    return results


async def measure_step(server: Server, honest: Honest) -> float:
    """The longest that an honest prompt of nearly the whole context holds the stream up, in ms; the median of three."""
    found = json.loads(await asyncio.to_thread(server.ask, "/tokenize", compact(prompt="hi")))
    room = found["max_model_len"] - 64
    gaps = []
    for number in range(3):
        began = time.perf_counter()
        body = completion([number + 7] * room)
        await asyncio.to_thread(server.post, server.request(COMPLETIONS, body))
        gaps.append(max(honest.since(began)))
        await asyncio.sleep(SETTLE_SECONDS)
    print(f"a step with a prompt of {room} tokens: {statistics.median(gaps):.0f} ms", flush=True)
    return statistics.median(gaps)


async def measure_one(server: Server, honest: Honest, attack: Attack, step: float) -> Result:
    body = await asyncio.to_thread(attack.body)
    request = server.request(attack.path, body)
    began = time.perf_counter()
    await asyncio.sleep(QUIET_SECONDS)
    quiet = honest.since(began)
    began = time.perf_counter()
    if attack.send is None:
        status = await asyncio.to_thread(server.post, request)
    else:
        status = await attack.send(server, request)
    took = time.perf_counter() - began
    await asyncio.sleep(SETTLE_SECONDS)
    return Result(attack.name, len(body), status, took, max(quiet), max(honest.since(began)), step)


def show(result: Result) -> None:
    mark = "" if result.within else "  *"
    print(
        f"{result.name:28s}{result.size / 1e3:10.0f}  {result.status:32s}{result.seconds:8.2f}{result.quiet:9.0f}"
        f"{result.gap:9.0f}{mark}",
        flush=True,
    )


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with this process
    print(f"{'attack':28s}{'kB':>10}  {'answer':32s}{'seconds':>8}{'quiet ms':>9}{'gap ms':>9}")
    with served(options) as (url, pid):
        results = asyncio.run(measure(Server(url, options.api_key), options))
        memory = peak_memory(pid)
    report(options, results, memory)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server, ending in /v1")
    where.add_argument("--model", default="lsv-demo")
    parser.add_argument("--pid", type=int, help="the API process of the running server")
    parser.add_argument("--api-key")
    parser.add_argument("--only", nargs="*", help="attacks whose names have one of these words")
    parser.add_argument("--repeats", type=int, default=1, help="times that each attack is run; the longest gap counts")
    parser.add_argument("serve", nargs="*", help="more options of lsv serve, behind --")
    return parser.parse_args()


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """The URL of a server that is ready, and its process."""
    if options.url:
        yield options.url, options.pid
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    with OwnServer(
        [sys.executable, "-m", "lsv", "serve", options.model, "--port", str(port), *options.serve], url
    ) as own:
        own.wait_until_ready(READY_SECONDS)
        yield url, own.pid


def peak_memory(pid: int | None) -> float | None:
    """The most memory that a process has had, in MB."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
    return None


def report(options: argparse.Namespace, results: list[Result], memory: float | None) -> None:
    over = [result.name for result in results if not result.within]
    print(f"{len(results)} attacks; over {1000 * AIM_SECONDS:.0f} ms and {STEPS} steps: {', '.join(over) or 'none'}")
    print(f"longest gap alone {max((result.quiet for result in results), default=0):.0f} ms", end="")
    print(f"; the API process has had at most {memory:.0f} MB" if memory else "")
    found: Mapping[str, Any] = {
        "model": options.url or options.model,
        "machine": msgspec.to_builtins(describe_machine()),
        "attacks": [asdict(result) for result in results],
        "peak_mb": memory,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
