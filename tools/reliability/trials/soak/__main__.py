"""``python -m trials.soak``: everything at once for minutes, then what is left of it, in one table.

First the answers of lsv-demo without load, then twice as many clients as the engine has slots, then the same while
engines and media workers are killed. Exit code 1 when a figure is not what it has to be.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx2

from trials.processes import alive, open_files
from trials.server import TrialServer, wait_until
from trials.soak.blocked_log import try_blocked_log
from trials.soak.hostile import GapWatch, HostileVisits
from trials.soak.kills import kill_processes
from trials.soak.known import learn_answers
from trials.soak.load import open_client, visit
from trials.soak.memory import MemoryWatch
from trials.soak.tally import Tally
from trials.soak.visits import Visits
from trials.table import Figure, at_most, print_heading, print_table, told

SLOTS = 16
"""Requests the engine runs at once; twice as many clients ask."""
BLOCKS = 120
"""Of the KV cache: fewer than the slots can fill, so that requests are preempted."""
EMBEDDED = "Lena is a teacher who lives in Brast."
KILLS_SHARE = 0.2
"""Of the time is for kills."""
WARM_SECONDS = 120.0
"""Until caches and pools are full, whatever a tenth of the time is."""
READY_SECONDS = 10.0
SETTLE_SECONDS = 20.0
CACHED_WORDS = 10_000
"""Words that a tokenizer remembers. They take 4 MiB of the API process, which new words would fill for half an hour."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a request counts as hung")
    parser.add_argument("--growth", type=float, default=1.0, help="per cent by which resident memory may grow")
    parser.add_argument("--gap", type=float, default=3.0, help="seconds that a stream may wait for a token")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder of the log and of what went wrong")
    options = parser.parse_args()
    print_heading(options)
    options.out.mkdir(parents=True, exist_ok=True)
    arguments = (
        "lsv-demo", "--max-num-seqs", str(SLOTS), "--num-gpu-blocks-override", str(BLOCKS), "--restart-engine",
        "--restart-window", "5",  # each kill counts alone: how long restarts wait after one another is not the question
        "--disable-log-requests", "--enable-lora", "--allow-runtime-lora-updating",
    )  # fmt: skip
    with TrialServer(*arguments, log=options.out / f"server-{options.seed}.log") as server:
        figures = asyncio.run(Soak(server, options).run())
        figures += stop(server)
    figures += try_blocked_log(options.out)
    return 0 if print_table(figures) else 1


class Soak:
    """The phases of a soak, on a server that is ready."""

    def __init__(self, server: TrialServer, options: argparse.Namespace) -> None:
        self._server, self._options = server, options
        self._seconds = options.minutes * 60
        self._load_seconds = self._seconds * (1 - KILLS_SHARE)
        self._bad = options.out / f"bad-{options.seed}.jsonl"

    async def run(self) -> list[Figure]:
        visits = await self._learn()
        files = self._open_files()
        calm = await self._load(visits)
        left = await self._leftovers("after the load", files)
        faults = self._server.faults()
        kills = await self._kill(visits)
        left += await self._leftovers("after the kills", None)
        return [*calm, at_most("tracebacks in the log before the kills", faults, 0), *kills, *left]

    async def _learn(self) -> Visits:
        async with open_client(self._server.url) as http:
            await fill_tokenizer(http)
            known = await learn_answers(http, 40, self._options.seed)
            reply = await http.post("/v1/embeddings", json={"input": EMBEDDED})
            print(f"{len(known)} known answers", flush=True)
            hostile = HostileVisits(self._options.out / "adapters")
            return Visits(known, EMBEDDED, reply.json()["data"][0]["embedding"], hostile.kinds)

    async def _load(self, visits: Visits) -> list[Figure]:
        """Twice the capacity, nothing killed: everything must be right."""
        watch, gaps = MemoryWatch(self._server), GapWatch(self._server.url)
        watching, listening = asyncio.create_task(watch.watch()), asyncio.create_task(gaps.watch())
        tally = await self._visit(visits, "load", self._load_seconds)
        watching.cancel()
        listening.cancel()
        watch.write(self._bad.with_name(f"memory-{self._options.seed}.jsonl"))
        return [
            told("requests under load", f"{tally.total()} ({', '.join(f'{k} {n}' for k, n in tally.kinds.items())})"),
            *(at_most(f"{end} under load", tally.ends[end], 0) for end in ("wrong", "failed", "broken", "hung")),
            *(self._growth(watch, kind) for kind in ("api", "engine")),
            told("tokens of a stream beside the load", str(gaps.tokens)),
            at_most("longest time between two of them", gaps.worst, self._options.gap, " s"),
        ]

    def _growth(self, watch: MemoryWatch, kind: str) -> Figure:
        warm = max(WARM_SECONDS, self._load_seconds / 10)
        name = f"growth of the {kind} process's memory ({watch.last(kind):.0f} MiB)"
        return at_most(name, 100 * watch.growth(kind, warm), self._options.growth, " %")

    async def _kill(self, visits: Visits) -> list[Figure]:
        """The same with kills: requests may fail with an error of the server's, and nothing else may happen."""
        seconds = self._seconds * KILLS_SHARE
        rng = Random(f"kills {self._options.seed}")
        every = max(5.0, min(20.0, seconds / 4))
        killing = asyncio.create_task(kill_processes(self._server, seconds - every, every, rng))
        tally = await self._visit(visits, "kills", seconds)
        ready = await killing
        return [
            told("requests while processes were killed", f"{tally.total()}, {tally.ends['failed']} lost"),
            *(at_most(f"{end} during the kills", tally.ends[end], 0) for end in ("wrong", "broken", "hung")),
            at_most(f"longest of {len(ready)} restarts", max(ready, default=0.0), READY_SECONDS, " s"),
        ]

    async def _visit(self, visits: Visits, phase: str, seconds: float) -> Tally:
        tally, options = Tally(phase, self._bad), self._options
        await visit(
            self._server.url, visits, tally, clients=2 * SLOTS, seconds=seconds, patience=options.patience,
            seed=f"{options.seed} {phase}",
        )  # fmt: skip
        print(f"{phase}: {dict(tally.ends)}", flush=True)
        return tally

    async def _leftovers(self, when: str, files: dict[str, int] | None) -> list[Figure]:
        """What requests that have ended still hold."""

        def idle() -> bool:
            return not any(self._server.stats().values())

        with suppress(TimeoutError):
            await asyncio.to_thread(wait_until, idle, SETTLE_SECONDS, "the server is not idle")
        stats = self._server.stats()
        figures = [at_most(f"{name.removeprefix('vllm:')} {when}", value, 0) for name, value in stats.items()]
        if files is not None:
            now = self._open_files()
            figures += [at_most(f"open files of the {kind} {when}, more than before", now[kind] - files[kind], 4)
                        for kind in files]  # fmt: skip
        return figures

    def _open_files(self) -> dict[str, int]:
        return {kind: sum(map(open_files, self._server.find(kind))) for kind in ("api", "engine")}


async def fill_tokenizer(http: httpx2.AsyncClient) -> None:
    """Fill the tokenizer's cache of words, so that memory that grows later is not this cache."""
    words = " ".join(f"word{number}" for number in range(CACHED_WORDS))
    (await http.post("/tokenize", json={"prompt": words})).raise_for_status()


def stop(server: TrialServer) -> list[Figure]:
    """End the server as an operator does; whatever outlives it is a figure."""
    family = server.processes()
    code = server.stop()
    left = alive(family)
    return [
        Figure("exit code after SIGTERM", str(code), "0", code == 0),
        Figure("processes left", str(len(left)), "0", not left),
    ]


if __name__ == "__main__":
    sys.exit(main())
