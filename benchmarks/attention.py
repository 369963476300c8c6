"""Paged attention alone: decode and prefill over batch sizes and contexts, beside the limits of the machine.

    python benchmarks/attention.py [--shape 14,2,64] [--dtype bfloat16] [--kv-dtypes float8_e4m3fn,int8] [--only decode]

Each case has as many layers as fit in 1 GiB of cache, up to 24, so that short contexts too come from memory and not
from a cache that the last layer has left warm; a figure is the median over the layers' mean. Cache dtypes are measured
by turns, so that a drifting machine treats them alike; so is, with ``--against LIBRARY``, another build of the native
kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from builds import PAUSE, load
from machine import measure_limits

from lsv.kv.spec import KVGroup
from lsv_cpu.attention import CpuAttention
from lsv_cpu.cache import KVCache
from lsv_cpu.codes import FORMS, encode
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.devices.device import Device

BLOCK = 32
MOST_LAYERS, MOST_BYTES = 24, 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """``batch`` requests with ``query`` new tokens each, the last at position ``context - 1``."""

    batch: int
    context: int
    query: int = 1

    def work(self, heads: int, dim: int) -> float:
        """Operations of both products, of visible keys only."""
        return 4.0 * self.batch * heads * dim * sum(range(self.context - self.query + 1, self.context + 1))


CASES = {
    "decode": [Case(batch, context) for batch in (1, 16, 32) for context in (200, 1024, 8192, 32768)],
    "prefill": [Case(1, length, length) for length in (512, 1024, 4096)],
    "chunk": [Case(1, context, query) for context in (4096, 8192) for query in (32, 64, 128)],
}


class Step:
    """One step of ``case`` through all its layers over a cache of ``kv_dtype``, callable on any build."""

    def __init__(
        self, case: Case, backend: CpuAttention, device: Device, options: argparse.Namespace, kv_dtype: torch.dtype
    ):
        heads, kv_heads, dim = (int(n) for n in options.shape.split(","))
        dtype = getattr(torch, options.dtype)
        layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
        size = token_bytes(layer, kv_dtype)
        self.bytes = case.batch * case.context * size
        count = max(1, min(MOST_LAYERS, MOST_BYTES // self.bytes))
        self.layers = [replace(layer, index=i, place=i) for i in range(count)]
        group = KVGroup(0, "full", tuple(range(count)), size)
        blocks = -(-case.context // BLOCK)
        self.cache = backend.allocate(CacheSpec([group], self.layers, case.batch * blocks, BLOCK, kv_dtype), device)
        fill(self.cache, self.layers)
        table = np.random.default_rng(0).permutation(case.batch * blocks).astype(np.int32).reshape(case.batch, -1)
        query, context = (np.full(case.batch, n, np.int32) for n in (case.query, case.context))
        self.plan = backend.plan(BatchLayout(query, context, (table,)), group)
        qkv = torch.randn(case.batch * case.query, heads + 2 * kv_heads, dim).to(dtype)
        self.heads = qkv.split((heads, kv_heads, kv_heads), dim=1)

    def seconds(self, backend: CpuAttention) -> float:
        """Of one layer, on average."""
        q, k, v = self.heads
        began = time.perf_counter()
        for layer in self.layers:
            backend.attend(q, k, v, layer, self.cache, self.plan)
        return (time.perf_counter() - began) / len(self.layers)


def fill(cache: KVCache, layers: list[AttentionLayer]) -> None:
    values = torch.randn(1 << 20)
    values = encode(values, cache.dtype, 1.0)[0] if cache.dtype in FORMS else values.to(cache.dtype)
    for piece in cache.pages.view(-1).split(len(values)):
        piece.copy_(values[: len(piece)])
    for scales in (scales for layer in layers for scales in cache.scales(layer)):
        if scales is not None:
            scales.fill_(0.02)


def main() -> None:
    options = read_options()
    device = CpuPlatform().open(0, {"cpu.threads": options.threads})
    builds = {"this": CpuAttention()}
    if options.against:
        builds["other"] = CpuAttention(load(options.against, options.threads))
    before = measure_limits(options.threads, 512)
    rows = [row for case in chosen(options.only) for row in measure(case, builds, device, options)]
    print(
        json.dumps(
            {"shape": options.shape, "dtype": options.dtype, "limits": [before, measure_limits(options.threads, 512)]}
        )
    )
    print(json.dumps(rows))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="14,2,64", help="query heads, KV heads, head size")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-dtypes", help="of the cache, by torch's names; default: as --dtype")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="decode, prefill, chunk, or batch,context,query")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a case and build, about")
    parser.add_argument("--against", type=Path)
    return parser.parse_args()


def chosen(only: str | None) -> list[Case]:
    if only is None:
        return [case for cases in CASES.values() for case in cases]
    return CASES[only] if only in CASES else [Case(*(int(n) for n in only.split(",")))]


def measure(
    case: Case, builds: dict[str, CpuAttention], device: Device, options: argparse.Namespace
) -> Iterator[dict[str, object]]:
    heads, _, dim = (int(n) for n in options.shape.split(","))
    names = (options.kv_dtypes or options.dtype).split(",")
    steps = {name: Step(case, builds["this"], device, options, getattr(torch, name)) for name in names}
    taken: dict[tuple[str, str], list[float]] = {(build, kv): [] for build in builds for kv in steps}
    spent = 0.0
    while spent < options.seconds or len(taken["this", names[0]]) < 3:
        for (build, kv), times in taken.items():
            time.sleep(PAUSE)
            step = steps[kv]
            warm, timed = step.seconds(builds[build]), step.seconds(builds[build])
            times.append(timed)
            spent += (warm + timed) * len(step.layers) / len(taken)
    for (build, kv), seconds in taken.items():
        middle = statistics.median(seconds)
        row: dict[str, object] = {
            "build": build,
            "kv": kv,
            "batch": case.batch,
            "context": case.context,
            "query": case.query,
            "us": round(middle * 1e6, 1),
            "best_us": round(min(seconds) * 1e6, 1),
            "gbps": round(steps[kv].bytes / middle / 1e9, 2),
            "gflops": round(case.work(heads, dim) / middle / 1e9, 1),
        }
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        yield row


if __name__ == "__main__":
    main()
