"""Rates of Triton's paged attention on a GPU, for steps of several kinds, against what the same GPU can do.

    python benchmarks/gpu_attention.py [--steps 64x8192,1x131072+255x1024,1x4096x4096] [--heads 32x8x128] [--json]

A step is what its rows are, joined by ``+``: how many, their context, and how many of its tokens are new, by default
one. All tables are as wide as the longest row of all steps, as a captured step has them. ``memory`` is the bytes of the
keys and values that are read against the bandwidth of torch's copy, ``peak`` the operations on visible keys against
matmul's rate. Steps of about the same bytes take about the same time if work is shared out well: one long row among
many short ones, say, and as many keys in equal rows. Exits 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

import numpy as np
import torch
from gpu_kernels import Limits, Rate, find_device, line, measure, measure_limits, rate, title

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_triton.attention.backend import TritonAttention

STEPS = "1x1024,8x1024,64x8192,256x1024,1x131072,8x131072,1x131072+255x1024,256x1537,1x4096x4096,1x131072x512"
BLOCK = 64


@dataclass(frozen=True, slots=True)
class Place:
    """What a backend needs of a device."""

    torch_device: torch.device
    pinned: bool = True


def read_step(text: str) -> tuple[list[int], list[int]]:
    """``"1x4096x512+2x100"`` -> new tokens [512, 1, 1] and contexts [4096, 100, 100]."""
    query: list[int] = []
    context: list[int] = []
    for part in text.split("+"):
        rows, length, *new = map(int, part.split("x"))
        query += rows * (new or [1])
        context += rows * [length]
    return query, context


def measure_step(text: str, longest: int, device: torch.device, limits: Limits, options: argparse.Namespace) -> Rate:
    heads, kv_heads, dim = map(int, options.heads.split("x"))
    query, context = read_step(text)
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
    size = token_bytes(layer, torch.bfloat16)
    group, counts = KVGroup(0, "full", (0,), size), [-(-length // BLOCK) for length in context]
    backend, pages = TritonAttention(), 1 + sum(counts)
    cache = backend.allocate(CacheSpec([group], [layer], pages, BLOCK, torch.bfloat16), Place(device))
    for piece in cache.pieces:
        piece.view(torch.bfloat16).normal_()
    order = 1 + np.random.default_rng(0).permutation(pages - 1).astype(np.int32)
    table = np.zeros((len(query), -(-longest // BLOCK)), np.int32)
    for row, blocks in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        table[row, : len(blocks)] = blocks
    plan = backend.plan(BatchLayout(np.array(query, np.int32), np.array(context, np.int32), (table,)), group)
    q = torch.randn(sum(query), heads, dim, device=device).bfloat16()
    took = measure(device, lambda number: backend.attend(q, None, None, layer, cache, plan), 1, options.seconds)
    visible = sum(new * (length - new) + new * (new + 1) // 2 for new, length in zip(query, context, strict=True))
    moved = sum(context) * size + 2 * q.nbytes
    return rate("attention", text, len(query), took, moved, 4 * visible * heads * dim, limits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default=STEPS)
    parser.add_argument("--heads", default="32x8x128", help="query heads x KV heads x head size")
    parser.add_argument("--seconds", type=float, default=0.05, help="of one measured run")
    parser.add_argument("--json", action="store_true", help="one object a line, the limits among them")
    options = parser.parse_args()

    device = find_device()
    if device is None:
        print("there is no GPU that torch can use: nothing to measure", file=sys.stderr)
        return 2
    steps = options.steps.split(",")
    longest = max(length for step in steps for length in read_step(step)[1])
    with torch.inference_mode():
        limits = measure_limits(device, torch.bfloat16, 5 * options.seconds)
        name = torch.get_device_module(device).get_device_name(device)
        print(json.dumps({"device": name, **asdict(limits)}) if options.json else title(name, limits), flush=True)
        for step in steps:
            found = measure_step(step, longest, device, limits, options)
            print(json.dumps(asdict(found)) if options.json else line(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
