"""Ranks on one machine: what a sum between them takes; a model cut over two ranks beside one with as many threads; and
its layers spread over two stages beside one rank with the threads of one of them.

    python benchmarks/ranks.py [--shape qwen2.5-0.5b] [--streams 1,16] [--tokens 64] [--rounds 3] [--quantization int8]

Sums are of bfloat16, through shared memory and through gloo's sockets by turns, in processes of one thread each. Of the
model, both ways are measured by turns, in processes of their own. Only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints import SHAPES, make_checkpoint

WAYS: dict[str, dict[str, Any]] = {
    "1 rank": {},
    "2 ranks": {"tensor_parallel_size": 2},
    "1 thread": {"cpu_threads": 1},
    "2 stages": {"pipeline_parallel_size": 2},
}
SIZES = ((1, 2048), (16, 2048), (512, 2048))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--streams", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quantization", help="the weights' format; bfloat16 without it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        in_processes(2, time_sums, f"{folder}/meeting")
    checkpoint = make_checkpoint(options.shape, Path(tempfile.gettempdir()) / "lsv-benchmarks")
    rates: dict[tuple[int, str], list[float]] = {}
    for _ in range(options.rounds):
        for way in WAYS:
            for streams, rate in in_process(measure_model, str(checkpoint), way, options):
                rates.setdefault((streams, way), []).append(rate)
    for streams in options.streams:
        whole, cut, half, staged = (statistics.median(rates[streams, way]) for way in WAYS)
        print(f"{streams} streams: 1 rank {whole:.1f} tokens/s, 2 ranks {cut:.1f}, {cut / whole:.2f} of it")
        print(f"{streams} streams: 1 thread {half:.1f} tokens/s, 2 stages {staged:.1f}, {staged / half:.2f} of it")


def in_processes(count: int, work: Callable[..., None], *arguments: object) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(rank, *arguments)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


def in_process(work: Callable[..., list[tuple[int, float]]], *arguments: object) -> list[tuple[int, float]]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def time_sums(rank: int, address: str) -> None:
    import torch

    from lsv_cpu.platform import CpuPlatform
    from lsv_runtime.devices.collectives import BackendCommunicator, gloo
    from lsv_runtime.devices.communicator import Group

    device = CpuPlatform().open_rank(rank, 2, {"cpu.threads": 1})
    shared = device.communicator(Group("tp", (0, 1), rank, address))
    sockets = BackendCommunicator(Group("sockets", (0, 1), rank, address), gloo, torch.device("cpu"))
    assert shared is not None
    for shape in SIZES:
        x, medians = torch.randn(shape).bfloat16(), []
        for communicator in (shared, sockets):
            times = []
            for _ in range(300):
                began = time.perf_counter()
                communicator.all_reduce(x)
                times.append(time.perf_counter() - began)
            medians.append(1e6 * statistics.median(times))
        if rank == 0:
            print(f"sum of {shape}: shared memory {medians[0]:.0f} µs, sockets {medians[1]:.0f} µs", flush=True)


def measure_model(checkpoint: str, way: str, options: argparse.Namespace) -> list[tuple[int, float]]:
    """Tokens a second of as many streams, for each number of them."""
    from lsv import LLM, SamplingParams

    draw, found, tokens = random.Random(0), [], options.tokens
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    given = {"quantization": options.quantization, "max_model_len": 512, **WAYS[way]}
    with LLM(checkpoint, skip_tokenizer_init=True, **given) as llm:
        for count in [options.streams[0], *options.streams]:  # the first warms up
            prompts = [{"prompt_token_ids": draw.choices(range(1000), k=64)} for _ in range(count)]
            began = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            found.append((count, count * tokens / (time.perf_counter() - began)))
    return found[1:]


if __name__ == "__main__":
    main()
