"""What running answers feel when pictures arrive, and what the second question about a picture costs.

    python benchmarks/media.py [--model lsv-demo] [--cores 0,1] [--engine-cores 0] [-- more options of lsv serve]
    python benchmarks/media.py --decoder qwen2.5-0.5b --alone 15 --pictures 40
    python benchmarks/media.py --url http://127.0.0.1:8000/v1

Eight streams decode alone for a while; then pictures of 1,024 x 1,024, all different, are sent, each as soon as the one
before is answered. ITL is the time from tokens of a stream to the next ones, as its reader sees them. Then chats: a
question about a new picture, and another one behind the answer; TTFT of both from the first byte sent.

Without ``--url`` a server is started, on ``--cores`` alone. ``--engine-cores 0`` of ``--cores 0,1`` leaves a core to
spare: the model computes on the one, HTTP and the processes that prepare pictures have the other. Without it the
engine's threads are on all. ``--decoder`` puts layers of another shape behind the tower of lsv-demo, with random
weights: its own take a millisecond for a step. ``--format words`` sends a few words in place of each picture, to tell
what a picture costs from what any prompt costs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import http.client
import io
import json
import signal
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from checkpoints import SHAPES, head_dim
from PIL import Image

from lsv_bench.figures import percentile
from lsv_bench.machine import describe_machine
from lsv_bench.server import OwnServer

EDGE = 1024
READY_SECONDS = 120.0
EVENT = b"data: {"
LAYERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with this process
    with served(options) as url:
        client = Client(url, options.api_key)
        streaming = asyncio.run(stream_beside_pictures(client, options))
        turns = ask_twice(client, options)
    report(options, streaming, turns)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server, ending in /v1")
    where.add_argument("--model", default="lsv-demo")
    parser.add_argument("--cores", help="cores that the server may use, as taskset takes them")
    parser.add_argument("--engine-cores", help="of these, the ones that the model computes on")
    parser.add_argument("--api-key")
    for name, default in (("streams", 8), ("pictures", 16), ("chats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream, which then begins anew")
    parser.add_argument("--decoder", choices=SHAPES, help="shape of another decoder with random weights")
    parser.add_argument("--alone", type=float, default=5.0, help="seconds of the streams alone")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between pictures")
    parser.add_argument("--format", choices=("PNG", "JPEG", "words"), default="PNG")
    parser.add_argument("serve", nargs="*", help="more options of lsv serve, behind --")
    return parser.parse_args()


@contextmanager
def served(options: argparse.Namespace) -> Iterator[str]:
    """The URL of a server that is ready."""
    if options.url:
        yield options.url
        return
    pin = ["taskset", "-c", options.cores] if options.cores else []
    bind = ["--cpu-bind", options.engine_cores] if options.engine_cores else []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    command = [*pin, sys.executable, "-m", "lsv", "serve", options.model, "--port", str(port), *bind]
    with OwnServer([*command, *reshaped(options.decoder), *options.serve], url) as server:
        server.wait_until_ready(READY_SECONDS)
        yield url


def reshaped(decoder: str | None) -> list[str]:
    """Options of lsv serve that put a decoder of random weights into lsv-demo."""
    if decoder is None:
        return []
    shape = SHAPES[decoder]
    changed = {**{name: shape[name] for name in LAYERS}, "head_dim": head_dim(shape)}
    return ["--load-format", "dummy", "--hf-overrides", json.dumps(changed)]


class Client:
    """Asks a server; a connection for each question."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.path = f"{parts.path}/chat/completions"
        self.headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def ask(self, body: bytes) -> tuple[float, str]:
        """Seconds until the first event with a token, and the answer. Blocks."""
        began, first, said = time.perf_counter(), 0.0, ""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request("POST", self.path, body, self.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"the server refused: {response.read().decode()}")
            for line in response:
                if line.startswith(EVENT) and (choices := json.loads(line[6:]).get("choices")):
                    said += choices[0]["delta"].get("content") or ""
                    if not first and "role" not in choices[0]["delta"]:
                        first = time.perf_counter() - began
        finally:
            connection.close()
        return first, said

    def tokenize(self, text: str) -> list[int]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        asked = json.dumps({"prompt": text, "add_special_tokens": False})
        with closing(connection):
            connection.request("POST", "/tokenize", asked, self.headers)
            tokens: list[int] = json.loads(connection.getresponse().read())["tokens"]
        return tokens

    async def listen(self, body: bytes, gaps: list[tuple[float, float]]) -> None:
        """Add to ``gaps`` when tokens of an answer came and how long after those before."""
        make = functools.partial(Listener, self.head(body), gaps)
        transport, listener = await asyncio.get_running_loop().create_connection(make, self.host, self.port)
        try:
            await listener.ended
        finally:
            transport.close()

    def head(self, body: bytes) -> bytes:
        """A request whose connection ends with its answer."""
        named = {"Host": self.host, "Connection": "close", "Content-Length": len(body), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Listener(asyncio.Protocol):
    """Reads one streamed answer and looks at the clock, no more: what it computes, the server lacks."""

    def __init__(self, request: bytes, gaps: list[tuple[float, float]]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._gaps, self._last = request, gaps, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if EVENT in data:
            now = time.perf_counter()
            if self._last:
                self._gaps.append((now, now - self._last))
            self._last = now

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def stream_beside_pictures(client: Client, options: argparse.Namespace) -> dict[str, float]:
    """ITL of the streams alone and while pictures arrive, in ms."""
    contents = [show(number, options) for number in range(options.pictures + 1)]
    bodies = [request([{"role": "user", "content": content}], max_tokens=2) for content in contents]
    gaps: list[tuple[float, float]] = []
    # random weights spell halves of characters, which come as no event of their own
    allowed = client.tokenize("a") if options.decoder else None

    async def stream(number: int) -> None:
        while True:
            asked = [{"role": "user", "content": f"{number} Tell me a long story."}]
            body = request(asked, max_tokens=options.tokens, allowed_token_ids=allowed)
            await client.listen(body, gaps)

    streams = [asyncio.create_task(stream(number)) for number in range(options.streams)]
    await asyncio.to_thread(client.ask, bodies.pop())  # processes start with the first
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    await asyncio.sleep(options.alone)
    middle = time.perf_counter()
    waits = []
    for body in bodies:
        waits.append((await asyncio.to_thread(client.ask, body))[0])
        await asyncio.sleep(options.pause)
    ended = time.perf_counter()
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    alone = [1000 * gap for at, gap in gaps if began < at <= middle]
    beside = [1000 * gap for at, gap in gaps if middle < at <= ended]
    return {"picture_ttft_ms": 1000 * statistics.median(waits), **spread("alone", alone), **spread("beside", beside)}


def spread(name: str, times: Sequence[float]) -> dict[str, float]:
    p50, p99 = percentile(times, 50), percentile(times, 99)
    found = {"times": len(times), "p50_ms": p50, "p99_ms": p99, "max_ms": max(times), "p99_of_p50": p99 / p50}
    return {f"{name}_{what}": value for what, value in found.items()}


def ask_twice(client: Client, options: argparse.Namespace) -> dict[str, float]:
    """TTFT of the first and the second turn of chats about pictures that are new, in ms."""
    first, second = [], []
    for number in range(options.chats):
        messages = [{"role": "user", "content": show(1000 + number, options)}]
        took, said = client.ask(request(messages, max_tokens=16))
        first.append(1000 * took)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And what is beside it?"}]
        second.append(1000 * client.ask(request(messages, max_tokens=16))[0])
    return {"first_ttft_ms": statistics.median(first), "second_ttft_ms": statistics.median(second)}


def show(number: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The content of a question about the picture of this number: soft colours, about as large as a photo. Or about as
    many words as the picture has embeddings.
    """
    if options.format == "words":
        return [{"type": "text", "text": f"{number} is a number. What is this?"}]
    colours = np.random.default_rng(number).integers(0, 256, (EDGE // 8, EDGE // 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((EDGE, EDGE), Image.Resampling.BICUBIC).save(file, options.format)
    link = f"data:image/{options.format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
    return [{"type": "image_url", "image_url": {"url": link}}, {"type": "text", "text": "What is this?"}]


def request(messages: Sequence[dict[str, Any]], **more: Any) -> bytes:
    """The body of a streamed request whose answer has its full length."""
    return json.dumps({"messages": messages, "temperature": 0.0, "ignore_eos": True, "stream": True, **more}).encode()


def report(options: argparse.Namespace, streams: dict[str, float], turns: dict[str, float]) -> None:
    print(f"{options.streams} streams: ITL in ms{'':11s}{'times':>10}{'p50':>10}{'p99':>10}{'max':>10}{'p99/p50':>10}")
    for name, title in (("alone", "alone"), ("beside", "while pictures arrive")):
        times = "".join(f"{streams[f'{name}_{what}']:10.2f}" for what in ("p50_ms", "p99_ms", "max_ms", "p99_of_p50"))
        print(f"{title:32s}{streams[f'{name}_times']:10.0f}{times}")
    ratios = {f"{what}_ratio": streams[f"beside_{what}_ms"] / streams[f"alone_{what}_ms"] for what in ("p50", "p99")}
    print(f"{'ratio':42s}{ratios['p50_ratio']:10.2f}{ratios['p99_ratio']:10.2f}")
    print(f"a picture's TTFT beside the streams{streams['picture_ttft_ms']:17.1f} ms")
    turns["ratio"] = turns["first_ttft_ms"] / turns["second_ttft_ms"]
    print(
        f"TTFT of the first turn {turns['first_ttft_ms']:.1f} ms, of the second {turns['second_ttft_ms']:.1f} ms:",
        end=" ",
    )
    print(f"{turns['ratio']:.1f} times lower")
    where = {
        "model": options.url or options.model,
        "decoder": options.decoder,
        "pause": options.pause,
        "cores": options.cores,
        "engine_cores": options.engine_cores,
        "format": options.format,
    }
    found = {
        **where,
        "machine": msgspec.to_builtins(describe_machine()),
        "streams": {**streams, **ratios},
        "turns": turns,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
