"""Compiles the kernels of attention for a GPU that is not here; a script, for Triton must not interpret them.

    python compile_attention.py ARCHITECTURE KIND LAUNCHES [DTYPE HEAD_DIM RATIO KV_DTYPE FEATURE]...

ARCHITECTURE is a CUDA compute capability such as 90, or one of AMD's such as gfx942; KIND one of the device table;
LAUNCHES "decoding" or "all". Prints a JSON list of [case, kernel, bytes of shared memory, how matrices are multiplied],
one for each kernel a case needs: by what instructions, how results lie in a warp's registers, and where sums are made.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.attention.pattern import BlockPattern
from lsv_triton import device_table
from lsv_triton.attention.backend import TritonAttention

BLOCK, HEADS = 64, 2
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 70},
    "reading": {"causal": False, "window": 70},
    "pattern": {"pattern": BlockPattern(size=64, local=16, stride=8, shift=1)},
    "biases": {"biases": torch.zeros(64, 40)},
    "all": {"window": 70, "soft_cap": 5.0, "sinks": torch.zeros(64), "alibi": torch.zeros(64)},
}


class Place:
    """Stands in for a device, and for Triton's driver of one."""

    torch_device, pinned = torch.device("cpu"), False

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device=None: 0


def compile_case(place: Any, launches: str, dtype: str, head_dim: str, ratio: str, kv_dtype: str, feature: str) -> None:
    """Launch what decoding of long contexts needs, or prompts too, short ones, and steps without a cache."""
    floats, stored, dim, kv_heads = getattr(torch, dtype), getattr(torch, kv_dtype), int(head_dim), HEADS
    layer = AttentionLayer(0, kv_heads * int(ratio), kv_heads, dim, 0.1, **FEATURES[feature])
    group = KVGroup(0, layer.kind, (0,), token_bytes(layer, stored), layer.window)
    backend = TritonAttention()
    cache = backend.allocate(CacheSpec([group], [layer], 2, BLOCK, stored), place)
    every = launches == "all"
    for query, blocks in itertools.product(([1, 1], [5, 1]), (32, 1)) if every else [([1, 1], 32)]:
        layout = BatchLayout(np.array(query, np.int32), np.array([9, 9], np.int32), (np.zeros((2, blocks), np.int32),))
        plan = backend.plan(layout, group)
        q = torch.zeros(sum(query), layer.heads, dim, dtype=floats)
        k = torch.zeros(sum(query), kv_heads, dim, dtype=floats)
        backend.attend(q, k, k, layer, cache, plan)
    if every:
        backend.attend(q, k, k, layer if layer.pattern else replace(layer, causal=False), None, plan)


def make_target(architecture: str) -> GPUTarget:
    """AMD's gfx9 have waves of 64 threads, all others 32."""
    if architecture.isdecimal():
        return GPUTarget("cuda", int(architecture), 32)
    return GPUTarget("hip", architecture, 64 if architecture.startswith("gfx9") else 32)


def main(architecture: str, kind: str, launches: str, *words: str) -> None:
    place = Place(make_target(architecture))
    driver.set_active(place)
    device_table.INTERPRETER = kind
    made: dict[Any, list[Any]] = {}
    run, case = jit.JITFunction.run, ""

    def only_compile(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
        code = run(kernel, *arguments, warmup=True, **options)
        products = set(re.findall(r"\bw?g?mma\.\w*sync[\w.:]*", code.asm.get("ptx", "")))
        layouts = re.findall(r"#\S+_mma<{(.*)}>", code.asm["ttgir"])
        products |= {re.sub(r"(warpsPerCTA = \[)\d+", r"\1any", layout) for layout in layouts}
        products |= set(re.findall(r"\(tensor<\d+x\d+xf32, (#[a-z]+)\d*>\) -> tensor", code.asm["ttgir"]))
        made[case, code.hash] = [case, code.metadata.name, code.metadata.shared, sorted(products)]
        return code

    jit.JITFunction.run = only_compile
    for first in range(0, len(words), 5):
        case = " ".join(words[first : first + 5])
        compile_case(place, launches, *words[first : first + 5])
    print(json.dumps(list(made.values())))


if __name__ == "__main__":
    main(*sys.argv[1:])
