"""Compiles every kernel for a GPU that need not be there, and prints what a program of each takes.

    python compile_resources.py ARCHITECTURE KIND

ARCHITECTURE and KIND are those of ``compile_attention.py``. Prints an object a line: the kernel, what it is launched
for, the registers of a thread, the bytes of them that lie in memory, and the program's bytes of shared memory.
``TRITON_INTERPRET`` must not be on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import compile_attention
import compile_gemm
import compile_kernels
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver, jit

from lsv_triton import device_table

_ATTENTION = (("bfloat16", "plain"), ("float8_e4m3fn", "plain"), ("int8", "plain"), ("bfloat16", "all"))
_ROWS = (1, 32, 2048)


class Resources(NamedTuple):
    registers: int
    spilled: int
    shared: int
    looped: int = 0
    """Instructions that move spilled registers within innermost loops over products of matrices; on NVIDIA's alone."""


def measure(code: Any) -> Resources:
    """What a compiled kernel takes, by its machine code."""
    if "amdgcn" in code.asm:
        found = {name: int(count) for name, count in re.findall(r"\.(\w+):\s+(\d+)", code.asm["amdgcn"])}
        spilled = found["private_segment_fixed_size"]
        return Resources(found["vgpr_count"], spilled, code.metadata.shared)
    tool = Path(triton.__file__).with_name("backends") / "nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        said, machine = (
            subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True).stdout
            for what in ("-res-usage", "-sass")
        )
    found = {name: int(count) for name, count in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    spilled = found["STACK"] + found["LOCAL"]
    return Resources(found["REG"], spilled, code.metadata.shared, count_looped(machine) if spilled else 0)


def count_looped(machine: str) -> int:
    """``Resources.looped`` of machine code: a loop is what lies between a branch and an earlier place it goes to."""
    lines = [(int(at, 16), line) for at, line in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", machine)]
    branches = ((at, re.search(r"\bBRA\b.*?0x([0-9a-f]+)", line)) for at, line in lines)
    loops = [(int(found[1], 16), at) for at, found in branches if found is not None and int(found[1], 16) < at]
    inner = [
        loop for loop in loops if not any(one != loop and loop[0] <= one[0] and one[1] <= loop[1] for one in loops)
    ]
    bodies = ([line for at, line in lines if first <= at <= last] for first, last in inner)
    over_products = (body for body in bodies if any("MMA" in line for line in body))
    return sum(bool(re.search(r"\b(LDL|STL)\b", line)) for body in over_products for line in body)


class Compiler:
    """Takes the place of Triton's launches: compiles each kernel once for its arguments, and remembers it."""

    def __init__(self, target: GPUTarget) -> None:
        self.place, self.purpose = compile_attention.Place(target), ""
        self.made: dict[str, tuple[str, str, Any]] = {}
        driver.set_active(self.place)
        run = jit.JITFunction.run

        def compile_only(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
            return self.keep(run(kernel, *arguments, warmup=True, **options), _variant(options))

        jit.JITFunction.run = compile_only

    def keep(self, code: Any, variant: str = "") -> Any:
        self.made.setdefault(code.hash, (code.metadata.name, self.purpose + variant, code))
        return code

    def attention(self) -> None:
        for stored, feature in _ATTENTION:
            self.purpose = f"{stored} cache" + (", all features" if feature == "all" else "")
            compile_attention.compile_case(self.place, "all", "bfloat16", "128", "4", stored, feature)

    def products(self) -> None:
        from lsv_triton.gemm import moe
        from lsv_triton.gemm import product as gemm
        from lsv_triton.gemm.fp8 import Fp8Linear
        from lsv_triton.gemm.linear import TritonLinear

        for name, linear in (*compile_gemm.layers(), *compile_gemm.integer_layers()):
            kernel = TritonLinear(linear, linear.spec())
            kernel.pack()
            for rows in _ROWS:
                self.purpose = f"{name}, {rows} rows"
                kernel.forward(_meta(rows, 4096))
            for tokens in (2, 2048):
                self.purpose = f"experts of {name}, {tokens} tokens"
                route = moe.route_rows(_meta(tokens, 8, dtype=torch.int64), 1, kernel._stack.op)
                gemm.product(_meta(tokens, 4096), kernel._stack, route, top=8)
        self.purpose = "experts"
        moe.choose_experts(_meta(16, 128), 8, normalise=True)
        moe.route_rows(_meta(16, 8, dtype=torch.int32), 128, "product")
        moe.add_experts(_meta(16, 4096, dtype=torch.float32), _meta(2, 8, dtype=torch.float32))
        table, chosen = _meta(128, dtype=torch.int64), _meta(16, 8, dtype=torch.int32)
        moe.route_rows(chosen, 64, "product", table)
        moe.add_experts(_meta(128, 4096, dtype=torch.float32), _meta(16, 8, dtype=torch.float32), chosen, table)
        for name, linear in compile_gemm.fp8_layers() if device_table.float8_of() else ():
            kernel = Fp8Linear(linear, linear.spec())
            kernel.pack()
            for rows in _ROWS:
                self.purpose = f"{name}, {rows} rows"
                kernel.forward(_meta(rows, linear.layer.inputs))
            for tokens in (2, 2048):
                self.purpose = f"experts of {name}, {tokens} tokens"
                route = moe.route_rows(_meta(tokens, 8, dtype=torch.int64), 1, kernel._stack.op)
                gemm.product(_meta(tokens, linear.layer.inputs), kernel._stack, route, top=8)

    def others(self, target: GPUTarget) -> None:
        known = compile_kernels.types("bf16")
        for kernel, constants, own in compile_kernels.kernels():
            self.purpose = ", ".join(f"{name}={value}" for name, value in constants.items())
            signature = {name: own.get(name, known.get(name, "i32")) for name in kernel.arg_names}
            places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
            source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), places)
            warps = _warps(kernel.__name__)
            self.keep(triton.compile(source, target=target, options={"num_warps": warps}))

    def lines(self) -> Iterator[str]:
        for kernel, purpose, code in self.made.values():
            yield json.dumps({"kernel": kernel.strip("_"), "purpose": purpose, **measure(code)._asdict()})


def _variant(options: Any) -> str:
    """What distinguishes the launches of attention."""
    if "PLANNED" not in options:
        return ""
    if not options["PAGED"]:
        return ", no cache"
    return ", cut" if options["CUT"] else ", whole"


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _warps(kernel: str) -> int:
    """As many as the device table gives the op behind a kernel."""
    found = {"find_best": "best", "find_border": "best", "list_candidates": "list", "describe": "list", "rank": "draw"}
    op = found.get(kernel, kernel)
    table = device_table._TABLE.get(op, {})
    return table["default"].warps if "default" in table else 4


def main(architecture: str, kind: str) -> None:
    target = compile_attention.make_target(architecture)
    device_table.INTERPRETER = kind
    device_table.launch = lambda op, device: device_table.look_up(op, kind)
    compiler = Compiler(target)
    compiler.attention()
    compiler.products()
    compiler.others(target)
    for line in compiler.lines():
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
