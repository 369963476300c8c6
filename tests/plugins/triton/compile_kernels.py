"""Compiles kernels for a GPU that need not be there: ``compile_kernels.py ARCHITECTURE FLOATS`` prints what came of it.

A script of its own because a process in which Triton interprets can not compile.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lsv_triton import rank_sum
from lsv_triton.layers import activation, lora, norm, rope, rope_write
from lsv_triton.sampling import describing
from lsv_triton.sampling import kernels as sampling

_SURVEYED = {"CHUNKS": 64, "GROUPS": 8192, "PER_CHUNK": 128}
_LISTED = {"ROOM": 1 << 14, "CHUNK": 4096}
_WEIGHING = (sampling.find_best, sampling.list_candidates, sampling.draw, describing.describe)
_INEXACT = re.compile(r"\bfma|\.ftz|approx|div\.full")


def types(floats: str) -> dict[str, str]:
    """Types of arguments by name; others are int32."""
    names = (
        (f"*{floats}", "x parts logits residual weight weights out total q_weight k_weight table qkv"),
        ("*fp32", "edited floats rates key_scales value_scales"),
        ("*i32", "edits sound keys ids groups counts listed_ids listed_keys slots"),
        ("*i64", "choices tokens bounds sums told positions"),
        ("fp32", "eps q_eps k_eps key_scale value_scale alpha limit"),
    )
    return {name: kind for kind, some in names for name in some.split()}


def kernels() -> Iterator[tuple[Any, Mapping[str, Any], Mapping[str, str]]]:
    """Kernels, their constants, and types that are theirs alone."""
    rows = {"rows": "*i64"}
    for kind in range(4):
        yield sampling.edit, {"KIND": kind, "BLOCK": 256}, {}
    for asked in (False, True):
        yield sampling.survey, {"PICKED": asked, "CHUNK": 4096}, rows
        yield sampling.find_best, {"EDITED": asked, "DRAWING": asked, **_SURVEYED}, {}
        yield norm._rms_norm, {"SIZE": 896, "ADD": asked, "ROWS": 1, "BLOCK": 1024}, {}
        yield rope._turn_heads, {"DIM": 80, "ROTARY": 20, "NORM": asked, "ROWS": 8, "BLOCK": 128}, {}
        for form, stored in enumerate(("*bf16", "*u8", "*u8", "*i8")):
            sizes = {"HEADS": 32, "KV_HEADS": 8, "DIM": 80, "ROTARY": 20, "BLOCK": 64, "LINES": 8, "SPAN": 128}
            own = {"keys": stored, "values": stored}
            yield rope_write._turn_and_write, {**sizes, "NORM": asked, "FORM": form}, own
        yield rank_sum._sum_ranks, {"RANKS": 8, "WIDE": asked, "BLOCK": 512}, {}
        yield lora._project, {"ADD": asked, "OUTPUTS": 16, "INPUTS": 128}, {}
    yield sampling.list_candidates, _LISTED, {}
    yield sampling.draw, {**_LISTED, "CHUNKS": 64, "FIRST": 7, "BLOCK": 1024}, {}
    yield describing.find_border, _SURVEYED, {}
    yield describing.describe, _LISTED, rows
    yield describing.rank, {"ROOM": 1 << 14, "CHUNKS": 64, "BLOCK": 1024}, rows
    for name in dict.fromkeys(activation.KINDS.values()):
        yield activation._gated, {"KIND": name, "BLOCK": 1024}, {}


def main(architecture: int, floats: str) -> None:
    """Prints by kernel: inexact instructions in its PTX, and fused and plain ones in its machine code."""
    known, found = types(floats), []
    for kernel, constants, own in kernels():
        signature = {name: own.get(name, known.get(name, "i32")) for name in kernel.arg_names}
        source = ASTSource(
            fn=kernel,
            signature=signature | dict.fromkeys(constants, "constexpr"),
            constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        )
        code = triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm
        exact = kernel.__module__ in (sampling.__name__, describing.__name__)
        inexact = len(_INEXACT.findall(code["ptx"])) if exact else 0
        machine = code["sass"] if kernel in _WEIGHING else ""
        found.append((kernel.__name__, inexact, machine.count("FFMA"), machine.count("FMUL")))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
