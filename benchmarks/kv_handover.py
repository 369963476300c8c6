"""When a consumer answers whose prompt a producer computes: asked once the producer has answered, and at the same time.

    python benchmarks/kv_handover.py [--shape qwen2.5-0.5b] [--tokens 4096] [--chunk 512] [--repeats 5] [--network]

Two engines on one machine, dummy weights, one request at a time; seconds from the first question to the consumer's
first token. Medians, and how many times the shortest way each takes; then what lies behind the producer's answer, less
what the consumer takes for a prompt that it has (``again``): that is for handing over and loading what the last chunk
has computed. The two hand files over as engines of one machine do, or with ``--network`` over TCP, as others would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from checkpoints import SHAPES
from replicas import ids, opened

from lsv.config import EngineConfig
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.router import Router
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.resolve import resolve
from lsv_base.processes.ports import free_port
from lsv_offline.llm import read_arguments

ONE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--chunk", type=int, default=512, help="prompt tokens that a step computes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--network", action="store_true", help="over TCP, though both are on one machine")
    options = parser.parse_args()
    os.environ["LSV_CLUSTER_KEY"] = secrets.token_hex()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        asyncio.run(measure(options, Path(folder)))


async def measure(options: argparse.Namespace, folder: Path) -> None:
    port = free_port()
    peer = f"{'localhost' if options.network else '127.0.0.1'}:{port}"  # by another name it is on another machine
    first = configure(options, folder, kv_role="producer", kv_port=port)
    second = configure(options, folder, kv_role="consumer", kv_peers=peer)
    found: dict[str, list[float]] = {}
    behind: dict[str, list[float]] = {}
    async with opened(first, [Router()]) as (producer,), opened(second, [Router()]) as (consumer,):

        async def hand_on(name: str) -> float:
            """When the producer has answered."""
            await ask(producer, options, name, hand_on=True)
            return time.perf_counter()

        for turn in range(options.repeats + 1):
            for way in ("computed", "in turn", "again", "at once"):
                name = f"{'in turn' if way == 'again' else way} {turn}"
                began = answered = time.perf_counter()
                if way in ("computed", "again"):
                    cached = await ask(consumer, options, name)
                elif way == "in turn":
                    answered = await hand_on(name)
                    cached = await ask(consumer, options, name, kv_peer=peer)
                else:
                    beside = asyncio.create_task(hand_on(name))
                    cached = await ask(consumer, options, name, kv_peer=peer, kv_pending=True)
                ended = time.perf_counter()
                if way == "at once":
                    answered = await beside
                if turn:  # the first is to warm up
                    found.setdefault(way, []).append(ended - began)
                    behind.setdefault(way, []).append(ended - answered)
                    print(f"{way}: {ended - began:.3f} s, {cached} tokens were not computed", flush=True)
    medians = {way: statistics.median(times) for way, times in found.items()}
    again = medians.pop("again")
    for way, seconds in medians.items():
        print(f"{way:10} {1000 * seconds:9.1f} ms to the first token  {seconds / min(medians.values()):6.3f} ×")
    for way in ("in turn", "at once"):
        rest = statistics.median(behind[way]) - again
        print(f"{way:10} {1000 * rest:9.1f} ms behind the producer's answer, {100 * rest / medians[way]:.1f} % of that")


def configure(options: argparse.Namespace, folder: Path, **given: Any) -> EngineConfig:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SHAPES[options.shape]), encoding="utf-8")
    settings, loaded = read_arguments({
        "model": str(model), "load_format": "dummy", "max_model_len": options.tokens + 64, "block_size": 16,
        "max_num_batched_tokens": options.chunk, "enable_chunked_prefill": True, "max_num_seqs": 4,
        "kv_offload_path": str(folder / given["kv_role"]), "kv_timeout": 300, **given,
    })  # fmt: skip
    return resolve(settings, loaded)


async def ask(client: ReplicaSet, options: argparse.Namespace, name: str, **given: Any) -> int:
    """How many tokens of a prompt were not computed, once its first token is there."""
    prompts = (Prompt(tuple(ids(name, options.tokens))),)
    request = RequestSpec(prompts=prompts, sampling=ONE, request_id="bench", **given)
    return sum([chunk.cached or 0 async for chunk in client.generate(request)])


if __name__ == "__main__":
    main()
