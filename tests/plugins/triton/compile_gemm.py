"""Compiles the kernels of matrix products as the layers of a model launch them, for a GPU that need not be there.

    python compile_gemm.py 90 hopper [layer ...]

Prints an object a line: the layer, its rows, the kernel, the matrix unit's instructions in its code, and how many of it
turn whole numbers into floats.
``TRITON_INTERPRET`` must not be set.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lsv_runtime.weights.codebook import ROUNDED, Codebook, CodedLinear
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear
from lsv_runtime.weights.static_coded import StaticCodedLinear
from lsv_triton import device_table

_POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e4m3fnuz: "*fp8e4b8", torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8",
    torch.uint8: "*u8",
}  # fmt: skip
_MATRIX = re.compile(r"wgmma\.mma_async\S*|mma\.sync\S*|tcgen05\.mma\S*")
_CONVERSION = re.compile(r"\bcvt\.rn\.f(?:32|16)\.[us]\d+")
_E2M1 = tuple(sign * size for sign in (1.0, -1.0) for size in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
_FP8 = Codebook(tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()))


class Compiling:
    """Takes a kernel's place and compiles it with the arguments of each launch."""

    def __init__(self, kernel: Any, target: GPUTarget, found: list[tuple[str, list[str], int]]) -> None:
        self.kernel, self.target, self.found = kernel, target, found

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.launch

    def launch(self, *args: Any, **options: Any) -> None:
        names = self.kernel.arg_names
        given = dict(zip(names, args, strict=False)) | {name: options.pop(name) for name in names if name in options}
        signature, constants, aligned = {}, {}, {}
        for place, name in enumerate(names):
            value = given[name]
            signature[name] = _kind(value) if not self.kernel.params[place].is_constexpr else "constexpr"
            if signature[name] == "constexpr":
                constants[(place,)] = value
            elif isinstance(value, torch.Tensor) or value % 16 == 0:
                aligned[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, aligned)
        built = triton.compile(source, target=self.target, options=options)
        ptx = built.asm["ptx"]
        self.found.append((self.kernel.__name__, sorted(set(_MATRIX.findall(ptx))), len(_CONVERSION.findall(ptx))))


def _kind(value: Any) -> str:
    """The type Triton gives an argument; one and None are constants."""
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if value is None or value == 1:
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32"


def layers() -> Iterator[tuple[str, Any]]:
    """Layers of a large model, without memory."""
    layer = LinearLayer("q", "column", 4096, (4096,), True, torch.bfloat16)
    bias = torch.nn.Parameter(torch.empty(4096, dtype=torch.bfloat16, device="meta"), requires_grad=False)
    yield (
        "plain",
        PlainLinear(layer, torch.nn.Parameter(torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")), bias),
    )
    nibbles = tuple(float(n) for n in range(16))
    codebooks = {
        "w4": Codebook(nibbles, 128), "w4 with offsets": Codebook(nibbles, 32, offsets=True), "fp8": _FP8,
        "e2m1": Codebook(_E2M1, 32), "table": Codebook((*nibbles[1:], 99.0), 64),
        "ordered": Codebook(nibbles, 48, offsets=True, ordered=True),
    }  # fmt: skip
    for name, codebook in codebooks.items():
        linear = CodedLinear(layer, codebook, bias)
        count = (4096, codebook.groups(4096))
        linear.hold(
            torch.empty(4096, 4096 * codebook.bits // 8, dtype=torch.uint8, device="meta"),
            torch.empty(count, device="meta"),
            torch.empty(count, device="meta") if codebook.offsets else None,
            torch.empty(4096, dtype=torch.int32, device="meta") if codebook.ordered else None,
        )
        yield name, linear


def integer_layers() -> Iterator[tuple[str, Any]]:
    from lsv_quant.online import int4, int8
    from lsv_quant.online.online import Online

    layer = LinearLayer("q", "column", 4096, (4096,), False, torch.bfloat16)
    whole_rows = Online("int8", int8.Int8Linear)
    for name, online in (("int8", int8.make({})), ("int8, whole rows", whole_rows), ("int4", int4.make_64({}))):
        weight = torch.nn.Parameter(torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta"), requires_grad=False)
        linear: Any = online.build(layer, {"weight": weight})
        groups = (64,) if name == "int4" else ()
        linear.keep("scales", torch.empty((4096, *groups), device="meta"))
        if linear.format == "int8":
            linear.keep("codes", torch.empty(4096, 4096, dtype=torch.int8, device="meta"))
        else:
            linear.keep("nibbles", torch.empty(4096, 2048, dtype=torch.uint8, device="meta"))
        yield name, linear


def fp8_layers() -> Iterator[tuple[str, Any]]:
    """Layers whose activations become e4m3, too: a scale for each token, and one for every 128 inputs; and one whose
    inputs end inside a step.
    """
    for name, inputs, group in (
        ("fp8 both", 4096, 0), ("fp8 both, groups", 4096, 128), ("fp8 both, odd", 4072, 0)
    ):  # fmt: skip
        layer = LinearLayer("q", "column", inputs, (4096,), False, torch.bfloat16)
        linear = CodedLinear(layer, Codebook(_FP8.table, group), None, frozenset((ROUNDED,)))
        codes = torch.empty(4096, inputs, dtype=torch.uint8, device="meta")
        linear.hold(codes, torch.empty(4096, linear.codebook.groups(inputs), device="meta"))
        yield name, linear


def static_layers() -> Iterator[tuple[str, Any]]:
    """Layers whose activations become e4m3 by a stored scale."""
    for name, group in (("fp8 static", 0), ("fp8 static, groups", 128)):
        layer = LinearLayer("q", "column", 4096, (4096,), False, torch.bfloat16)
        linear = StaticCodedLinear(layer, Codebook(_FP8.table, group), None)
        codes = torch.empty(4096, 4096, dtype=torch.uint8, device="meta")
        linear.hold(codes, torch.empty(4096, linear.codebook.groups(4096), device="meta"))
        linear.keep("input_scale", torch.empty(1, device="meta"))
        yield name, linear


def main(arch: int, kind: str, wanted: list[str]) -> None:
    device_table.launch = lambda op, device: device_table.look_up(op, kind)
    from lsv_triton.gemm import moe, rounding, weights
    from lsv_triton.gemm import product as gemm
    from lsv_triton.gemm.fp8 import Fp8Linear
    from lsv_triton.gemm.linear import TritonLinear

    weights.float8_of = lambda: torch.float8_e4m3fn if arch >= 89 else None
    weights.takes_ptx = lambda: True

    found: list[tuple[str, list[str], int]] = []
    target = GPUTarget("cuda", arch, 32)
    kernels: tuple[tuple[Any, str], ...] = (
        (gemm, "multiply"),
        (gemm, "add_parts"),
        (gemm, "multiply_integers"),
        (rounding, "_round_rows"),
        (rounding, "_round_by_scale"),
        (moe, "_add_experts"),
        (moe, "_sort_rows"),
        (moe, "_choose_experts"),
    )
    for module, name in kernels:
        setattr(module, name, Compiling(getattr(module, name), target, found))

    def show(layer: str, rows: int) -> None:
        for kernel, instructions, conversions in found:
            one = {"layer": layer, "rows": rows, "kernel": kernel, "instructions": instructions}
            print(json.dumps({**one, "conversions": conversions}))
        found.clear()

    for name, linear in (*layers(), *integer_layers(), *static_layers()):
        if wanted and name not in wanted:
            continue
        kernel = TritonLinear(linear, linear.spec())
        kernel.pack()
        for rows in (1, 2048):
            kernel.forward(torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta"))
            show(name, rows)
        if not wanted:
            for tokens in (2, 2048):
                chosen = torch.empty(tokens, 8, dtype=torch.int64, device="meta")
                route = moe.route_rows(chosen, 1, kernel._stack.op)
                x = torch.empty(tokens, 4096, dtype=torch.bfloat16, device="meta")
                gemm.product(x, kernel._stack, route, top=8)
                show(f"experts of {name}", tokens)
    for name, linear in fp8_layers():
        if wanted and name not in wanted:
            continue
        rounding_kernel = Fp8Linear(linear, linear.spec())
        rounding_kernel.pack()
        for rows in (1, 2048):
            rounding_kernel.forward(torch.empty(rows, linear.layer.inputs, dtype=torch.bfloat16, device="meta"))
            show(name, rows)
    if wanted:
        return
    moe.choose_experts(torch.empty(2, 128, dtype=torch.bfloat16, device="meta"), 8, normalise=True)
    shares, answers = torch.empty(2, 8, device="meta"), torch.empty(16, 4096, device="meta")
    moe.add_experts(answers, shares)
    show("moe", 2)
    table, chosen = (torch.empty(size, dtype=torch.int64, device="meta") for size in ((128,), (2, 8)))
    moe.route_rows(chosen, 64, "product", table)
    moe.add_experts(answers, shares, chosen, table)
    show("spread moe", 2)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
