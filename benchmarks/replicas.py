"""What replicas are good for: two engines against one, and requests routed by prefix against taking turns.

    python benchmarks/replicas.py streams [--shape qwen2.5-0.5b] [--simulated]
    python benchmarks/replicas.py chats [--users 12] [--turns 5] [--simulated]

``streams`` asks one engine on the first core, then two on a core each, for twice as many answers as one computes at a
time. ``chats`` has each user send all that was said so far and more, again and again, through each way of routing over
the same two engines. Random weights; prompts are of random ids. ``--simulated`` computes nothing: engines, their
schedulers and their caches are real, but a step sleeps for as long as ``--step-ms`` and ``--token-ms`` say, so that the
figures stand on a busy machine, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from checkpoints import SHAPES
from simulate.fleet import TakingTurns

from lsv.config import EngineConfig, Topology
from lsv.engine.orders.order import ResetPrefixCache
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.router import Router
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.resolve import resolve
from lsv.text.tokenizer import NoTokenizer
from lsv_offline.llm import read_arguments
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.tokens import VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("streams", "chats"))
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--streams", type=int, default=16, help="requests that an engine computes at a time")
    parser.add_argument("--users", type=int, default=12, help="chats at a time")
    parser.add_argument("--turns", type=int, default=5, help="turns of a chat")
    parser.add_argument("--document", type=int, default=768, help="tokens that a chat begins with")
    parser.add_argument("--said", type=int, default=96, help="tokens that a user adds in each turn")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns")
    parser.add_argument("--simulated", action="store_true", help="sleep instead of computing")
    parser.add_argument("--step-ms", type=float, default=12.0, help="what a simulated step takes")
    parser.add_argument("--token-ms", type=float, default=0.8, help="and each token in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run((streams if options.workload == "streams" else chats)(options, Path(folder)))


async def streams(options: argparse.Namespace, folder: Path) -> None:
    """Tokens per second of one engine and of two, and their ratio."""
    alone, both = configure(options, folder, 1), configure(options, folder, 2)
    rates: dict[int, list[float]] = {1: [], 2: []}
    for config in [alone, both] * options.rounds:
        async with opened(config, [Router()]) as (client,):
            await ask_all(client, options, "warm")
            rates[config.topology.data].append(await ask_all(client, options, "streams"))
    one, two = (statistics.median(found) for found in rates.values())
    print(f"one engine {one:.1f} tok/s, two {two:.1f} tok/s: {two / one:.2f} x   (all: {rates})", flush=True)


async def chats(options: argparse.Namespace, folder: Path) -> None:
    """Tokens per second of answers, and the share of prompts found in caches, by the way of routing."""
    rates: dict[str, list[float]] = {}
    async with opened(configure(options, folder, 2), [TakingTurns(), Router()]) as clients:
        for turn in range(options.rounds):
            for name, client in zip(("turns", "prefix"), clients, strict=True):
                await client.order(ResetPrefixCache())
                before = client.stats
                began = time.perf_counter()
                users = (chat(client, options, f"{name} {turn} {user}") for user in range(options.users))
                tokens = sum(await asyncio.gather(*users))
                rates.setdefault(name, []).append(tokens / (time.perf_counter() - began))
                hits = client.stats.prefix_hits_total - before.prefix_hits_total
                asked = client.stats.prefix_queries_total - before.prefix_queries_total
                print(f"{name:8}{rates[name][-1]:9.1f} tok/s, prefix hits {hits / max(1, asked):.0%}", flush=True)
    turns, prefix = (statistics.median(found) for found in rates.values())
    print(f"by prefix {prefix / turns:.2f} x of taking turns", flush=True)


async def ask_all(client: ReplicaSet, options: argparse.Namespace, name: str) -> float:
    """Tokens per second of streams that begin at once."""
    began = time.perf_counter()
    prompts = [ids(f"{name} {number}", 128) for number in range(2 * options.streams)]
    answers = await asyncio.gather(*(ask(client, prompt, 2 * options.answer) for prompt in prompts))
    return sum(map(len, answers)) / (time.perf_counter() - began)


async def chat(client: ReplicaSet, options: argparse.Namespace, name: str) -> int:
    """A whole chat; how many tokens its answers had."""
    said, tokens = ids(name, options.document), 0
    for turn in range(options.turns):
        said += ids(f"{name} {turn}", options.said)
        answer = await ask(client, said, options.answer)
        said += answer
        tokens += len(answer)
    return tokens


async def ask(client: ReplicaSet, prompt: Sequence[int], tokens: int) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    request = RequestSpec(prompts=(Prompt(tuple(prompt)),), sampling=params, request_id="bench")
    return [token async for chunk in client.generate(request) for token in chunk.ids]


def ids(seed: str, count: int) -> list[int]:
    return [random.Random(f"{seed} {place}").randrange(5, VOCABULARY) for place in range(count)]


def configure(options: argparse.Namespace, folder: Path, replicas: int) -> EngineConfig:
    """So many engines, each on a core of its own."""
    longest = options.document + options.turns * (options.said + options.answer) + 64
    if options.simulated:
        if not any(folder.iterdir()):
            install_plugin(folder)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        delays = {"fake.delay": options.step_ms / 1000, "fake.token_delay": options.token_ms / 1000}
        room = options.users * longest // 16
        return engine_config(
            block_size=16, num_blocks=room, max_model_len=longest, max_num_seqs=options.streams,
            max_num_batched_tokens=512, options=delays, topology=Topology(data=replicas),
        )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(SHAPES[options.shape]), encoding="utf-8")
    cores = sorted(os.sched_getaffinity(0))[:replicas]
    settings, loaded = read_arguments({
        "model": str(folder), "load_format": "dummy", "max_model_len": longest, "max_num_seqs": options.streams,
        "data_parallel_size": replicas, "cpu_bind": "|".join(map(str, cores)), "cpu_kvcache_space": 1,
    })  # fmt: skip
    return resolve(settings, loaded)


@asynccontextmanager
async def opened(config: EngineConfig, routers: Sequence[Router]) -> AsyncIterator[list[ReplicaSet]]:
    """Engines that are ready, and a client of them for each router."""
    supervisors = Supervisors(config.replicas(), log_level="WARNING")
    supervisors.start()
    opened: list[ReplicaSet] = []
    try:
        for router in routers:
            each = zip(config.replicas(), supervisors.addresses, strict=True)
            clients = [SocketClient(one, address, NoTokenizer(config.tokenizer)) for one, address in each]
            opened.append(ReplicaSet(clients, router=router))
            await opened[-1].start()
            await opened[-1].ready()
        yield opened
    finally:
        for client in opened:
            await client.close()
        supervisors.stop()


if __name__ == "__main__":
    main()
