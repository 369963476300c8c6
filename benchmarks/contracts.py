"""Tokens per second over HTTP of one conversation in four contracts, as ratios to chat completions.

    lsv serve MODEL --served-model-name lsv-demo --port PORT --api-responses-path NEW_FILE
    python benchmarks/contracts.py http://127.0.0.1:PORT [--requests 64] [--at-once 8] [--rounds 9]

Each round streams the same conversation by every contract in turn, and each ratio is of one round. All contracts must
generate the same number of tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any

import httpx2

QUESTION = "Tell me a story about a lighthouse."
MESSAGES = [{"role": "user", "content": QUESTION}]
MOST = 200
CONTRACTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "chat completions": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "temperature": 0, "max_tokens": MOST, "stream": True},
    ),
    "responses": ("/v1/responses", {"input": QUESTION, "temperature": 0, "max_output_tokens": MOST, "stream": True}),
    "responses, not stored": (
        "/v1/responses",
        {"input": QUESTION, "temperature": 0, "max_output_tokens": MOST, "stream": True, "store": False},
    ),
    "messages": (
        "/v1/messages",
        {"model": "lsv-demo", "messages": MESSAGES, "temperature": 0, "max_tokens": MOST, "stream": True},
    ),
    "ollama": (
        "/api/chat",
        {"model": "lsv-demo", "messages": MESSAGES, "options": {"temperature": 0, "num_predict": MOST}},
    ),
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in CONTRACTS}
    async with httpx2.AsyncClient(base_url=options.url, timeout=600) as http:
        for number in range(options.rounds + 1):
            seconds = {name: await measure(http, name, options.requests, options.at_once) for name in CONTRACTS}
            if number:  # the first round warms up
                for name, taken in seconds.items():
                    ratios[name].append(seconds["chat completions"] / taken)
    print(f"{'contract':24}{'tokens/s as a ratio to chat completions: median':>50}{'least':>8}{'most':>8}")
    for name, found in ratios.items():
        print(f"{name:24}{statistics.median(found):>50.3f}{min(found):>8.3f}{max(found):>8.3f}")


async def measure(http: httpx2.AsyncClient, name: str, requests: int, at_once: int) -> float:
    """Seconds that so many requests take."""
    path, body = CONTRACTS[name]
    gate = asyncio.Semaphore(at_once)

    async def ask() -> None:
        async with gate, http.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for _ in reply.aiter_bytes():
                pass

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(requests)))
    return time.perf_counter() - began


if __name__ == "__main__":
    asyncio.run(main())
