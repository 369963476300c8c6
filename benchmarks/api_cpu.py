"""What a streamed token costs in the API process: microseconds of CPU, for several kinds of answers.

    python benchmarks/api_cpu.py [--streams 64] [--tokens 300] [--step-ms 10] [--rounds 3]

The real application and the real client in a process of their own, before an engine process over a fake worker that
takes ``step-ms`` a step. The clients are in this process, so that what they cost is not counted. A server that is
behind puts several tokens into an event, which makes them cheaper. Only ratios of one run mean something: machines, and
what else runs on them, differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lsv.engine.client import Service
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import Supervisor
from lsv.text.tokenizer import Tokenizer
from lsv_api.app import create_app
from lsv_api.options import ApiOptions
from lsv_api.server import Server
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.tokens import VOCABULARY

PROMPT = "tell me a story"
MESSAGES = [{"role": "user", "content": PROMPT}]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "chat_logprobs": ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5}),
    "completions": ("/v1/completions", {"prompt": PROMPT}),
    "chat_n4": ("/v1/chat/completions", {"messages": MESSAGES, "n": 4}),
    "chat_stops": ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["###", "\n\nUser:"]}),
    "completions_whole": ("/v1/completions", {"prompt": PROMPT, "stream": False}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of an answer")
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long the fake worker takes for a step")
    parser.add_argument("--rounds", type=int, default=3, help="how often each kind is measured; the least counts")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which of them")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options))
        return
    with running(options) as (pid, port):
        for name in options.kinds.split(","):
            found = [asyncio.run(measure(options, pid, port, name)) for _ in range(options.rounds)]
            token, tokens = min(found)
            shown = ", ".join(f"{one:.1f}" for one, _ in found)
            print(f"{name:20}{token:8.1f} us a token,{tokens:6.2f} tokens an event   (all: {shown})", flush=True)


async def measure(options: argparse.Namespace, pid: int, port: int, name: str) -> tuple[float, float]:
    """Microseconds of CPU that the server takes for a token of such answers, and how many tokens an event has."""
    path, fields = KINDS[name]
    count = fields.get("n", 1)
    wanted = {"max_tokens": options.tokens, "ignore_eos": True, "stream": True, **fields}
    before = cpu_seconds(pid)
    requests = [ask(port, path, wanted) for _ in range(options.streams // count)]
    events = sum(await asyncio.gather(*requests))
    tokens = len(requests) * count * options.tokens
    return 1e6 * (cpu_seconds(pid) - before) / tokens, tokens / max(1, events)


async def ask(port: int, path: str, body: dict[str, Any]) -> int:
    """Send a request; how many events its answer has, if it is a stream."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    data = await reader.readline()
    assert b" 200 OK" in data, data.decode()
    events = 0
    while data := await reader.read(1 << 18):
        events += data.count(b"data: ")
    writer.close()
    return events


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """The server's process id and port."""
    with tempfile.TemporaryDirectory() as folder:
        install_plugin(Path(folder))
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, __file__, "--serve", f"--step-ms={options.step_ms}", f"--tokens={options.tokens}"]
        server = subprocess.Popen(
            [*command, f"--streams={options.streams}"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            ready = next(line for line in server.stdout if line.startswith("lsv is ready on"))
            yield server.pid, int(ready.rsplit(":", 1)[1])
        finally:
            server.terminate()
            server.wait()


async def serve(options: argparse.Namespace) -> None:
    blocks = options.streams * (2 + options.tokens // 16)
    config = engine_config(
        block_size=16, num_blocks=blocks, max_model_len=options.tokens + 64, max_num_seqs=options.streams,
        max_num_batched_tokens=4096, options={"fake.delay": options.step_ms / 1000},
    )  # fmt: skip
    supervisor = Supervisor(config, log_level="WARNING")
    supervisor.start()
    client = SocketClient(config, supervisor.address, words())
    await client.start()
    service = Service({"fake": client})
    settings = ApiOptions(port=0, log_requests=False)
    try:
        await Server(service, settings, create_app(service, settings)).run()
    finally:
        await client.close()
        supervisor.stop()


def words() -> Tokenizer:
    """A byte-level vocabulary of letters, words and a special token, of the fake worker's size."""
    alphabet = [*string.ascii_lowercase, "Ġ", ".", ","]
    made = [f"Ġ{first}{middle}{last}" for first in "bdklmr" for middle in "aeio" for last in ("st", "nd", "ling")]
    vocab = {piece: token for token, piece in enumerate([*alphabet, *made][: VOCABULARY - 1])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    templates = {"default": "{{ messages[0].content }}"}
    return Tokenizer(backend, special_tokens={"eos_token": "<end>"}, templates=templates)


if __name__ == "__main__":
    main()
