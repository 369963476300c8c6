"""Workload S1: an engine's own HTTP server under streaming clients on the same cores."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
from collections.abc import Sequence
from typing import Any

from accounting import cores_between, take_usage
from setup import Setup
from workloads import Workload, make_prompts

from lsv_bench.datasets import Sample
from lsv_bench.load import LoadRun, Target, run_load
from lsv_bench.memory import measure_memory
from lsv_bench.server import OwnServer

READY_SECONDS = 300.0


def serve(setup: Setup, workload: Workload, seed: str) -> dict[str, Any]:
    """Start a server, warm it up with one request a client, measure. Raises ``LsvError`` when it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url, vocabulary = f"http://127.0.0.1:{port}/v1", setup.shape.vocabulary
    with OwnServer(setup.command(setup.engine.server, port=port), url) as server:
        stages = server.wait_until_ready(READY_SECONDS)
        target = Target(url=url, model="m")
        _run_load(target, make_prompts(workload, vocabulary, f"{seed} warm")[: workload.clients], workload)
        ours = [os.getpid(), server.pid]
        before = take_usage(ours)
        load = _run_load(target, make_prompts(workload, vocabulary, seed), workload)
        after = take_usage(ours)
        figures = summarise(load, workload)
        return {"load_s": sum(stages.values()), **figures, **cores_between(before, after), **measure_memory(server.pid)}


def summarise(load: LoadRun, workload: Workload) -> dict[str, Any]:
    """Tokens are those the server counted; times in seconds."""
    tokens = sum(one.output_tokens for one in load.outcomes)
    first = [one.ttft for one in load.outcomes]
    gaps = [gap for one in load.outcomes for gap in one.gaps]
    wrong = sorted({one.error for one in load.outcomes if one.error})
    return {
        "seconds": load.seconds,
        "complete": [one.output_tokens for one in load.outcomes] == [workload.output] * workload.requests,
        "output_tokens": tokens,
        "output_tps": tokens / load.seconds,
        "ttft_p50_s": statistics.median(first),
        "ttft_p99_s": percentile(first, 99),
        "itl_p50_s": statistics.median(gaps) if gaps else None,
        "itl_p99_s": percentile(gaps, 99) if gaps else None,
        **({"error": wrong[0]} if wrong else {}),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is at least as large as ``percent`` of them."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(percent) // 100) - 1)]


def _run_load(target: Target, prompts: Sequence[Sequence[int]], workload: Workload) -> LoadRun:
    samples = [Sample(tuple(prompt), workload.output) for prompt in prompts]
    at_once = [0.0] * len(samples)
    return asyncio.run(run_load(target, samples, at_once, concurrency=workload.clients, done=lambda: None))
