"""Rates of the Triton kernels for matrix products on a GPU, for every weight format and number of rows, against what
the same GPU can do: torch's copy of a large tensor and torch's best matmul, both measured first.

    python benchmarks/gpu_kernels.py [--formats bf16,int4/64] [--shapes 4096x4096] [--rows 1,16,128,2048] [--json]

Shapes are outputs x inputs of a 7B model's layers. Each call takes another copy of the weights, together far over the
caches. Where the device has graphs, calls are captured in one, as steps are when serving; else the time to launch
counts. Activations are rounded inside the time where a format asks for that. ``memory`` is the bytes of weights,
activations and results against the copy's bandwidth, ``peak`` the operations against matmul's rate in bfloat16; the
larger of the two says how far a kernel is from what binds it. ``torch`` is torch's own linear. Exits 2 without a GPU.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lsv.offers import KernelOffer, load_object
from lsv_quant import fp8
from lsv_quant.online import int4, int8, online_coded
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.quantizer import Quantizer, Unquantised
from lsv_testing.tensors import fill_module, place

Call = Callable[[int], object]
"""Computes one product, over the copy of the weights with a number."""

QUANTIZERS: dict[str, Callable[[], Quantizer]] = {
    "torch": Unquantised,
    "bf16": Unquantised,
    "w4+/64": functools.partial(online_coded.make_asym_int4_64, {}),
    "w4+/128": functools.partial(online_coded.make_asym_int4_128, {}),
    "nf4/64": functools.partial(online_coded.make_nf4, {}),
    "mxfp4/32": functools.partial(online_coded.make_mxfp4, {}),
    "w8": functools.partial(online_coded.make_int8_weight_only, {}),
    "fp8": functools.partial(fp8.make, {}),
    "fp8xfp8": functools.partial(fp8.make, {}),
    "int8": functools.partial(int8.make, {}),
    "int4/64": functools.partial(int4.make_64, {}),
}
LINEAR = tuple(
    KernelOffer(op, "*", "lsv_triton.gemm.linear:TritonLinear", lambda spec: None)
    for op in ("linear", "linear.coded", "linear.int8", "linear.int4")
)
ROUNDED = (KernelOffer("linear.coded", "*", "lsv_triton.gemm.fp8:Fp8Linear", lambda spec: None),)
EXPERTS = KernelOffer("moe", "*", "lsv_triton.gemm.moe:GroupedExperts", lambda spec: None)


@dataclass(frozen=True, slots=True)
class Limits:
    """What torch attains: bytes read and written by a copy, and operations of a matmul, each in a second."""

    copy_gbps: float
    matmul_tflops: float


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of the table; ``memory`` and ``peak`` are shares of the limits."""

    format: str
    shape: str
    rows: int
    microseconds: float
    gbps: float
    memory: float
    tflops: float
    peak: float


def find_device() -> torch.device | None:
    return next((torch.device(kind) for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)


def measure(device: torch.device, call: Call, copies: int, seconds: float) -> float:
    """Seconds of a call: the least mean over a few runs of as many as fill that time."""
    runtime: Any = torch.get_device_module(device)
    for number in range(copies):
        call(number)
    took = _time(runtime, lambda: call(0))
    count = max(copies, min(1000, int(seconds / max(took, 1e-6))))
    run = _captured(runtime, lambda: [call(number % copies) for number in range(count)])
    return min(_time(runtime, run) for _ in range(5)) / count


def _time(runtime: Any, run: Callable[[], object]) -> float:
    begin, end = (runtime.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    runtime.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _captured(runtime: Any, run: Callable[[], object]) -> Callable[[], object]:
    """The work as a graph, where this kind of device has them."""
    make = getattr(runtime, "CUDAGraph", None) or getattr(runtime, "XPUGraph", None)
    if make is None:
        return run
    graph = make()
    with runtime.graph(graph):
        run()
    graph.replay()
    return graph.replay  # type: ignore[no-any-return]


def measure_limits(device: torch.device, dtype: torch.dtype, seconds: float) -> Limits:
    """Over a copy of 1 GiB, and over the best of a few square products."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = measure(device, lambda number: target.copy_(source), 1, seconds)
    best = 0.0
    for size in (4096, 8192):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        best = max(best, 2 * size**3 / measure(device, lambda number, a=a, b=b: a @ b, 1, seconds))
    return Limits(2 * len(source) / copied / 1e9, best / 1e12)


def make_layers(name: str, shape: tuple[int, ...], device: torch.device, size: int) -> tuple[list[Any], int]:
    """A layer of random weights with as many copies as make up ``size`` bytes, and the bytes of one."""
    outputs, inputs = shape
    w = place(dtype=torch.bfloat16, quantizer=QUANTIZERS[name](), device=device)
    column = Column.even(w, ("q",), inputs, outputs)
    offers = {"torch": (), "fp8xfp8": ROUNDED}.get(name, LINEAR)
    bind(column, offers, "*", lambda offer: load_object(offer.load))
    return _copies(fill_module(column, w, DummySource(w.declaration.slots)), size)


def make_experts(shape: tuple[int, ...], device: torch.device, size: int) -> tuple[list[Any], int]:
    experts, top, hidden, intermediate = shape
    w = place(dtype=torch.bfloat16, device=device)
    module = MoE(w, hidden, intermediate, "silu", experts=experts, top=top, normalise=True)
    bind(module, (EXPERTS,), "*", lambda offer: load_object(offer.load))
    return _copies(fill_module(module, w, DummySource(w.declaration.slots)), size)


def _copies(module: torch.nn.Module, size: int) -> tuple[list[Any], int]:
    tensors = {t.data_ptr(): t.nbytes for t in (*module.parameters(), *module.buffers()) if not t.is_meta}
    held = sum(tensors.values())
    return [module, *(copy.deepcopy(module) for _ in range(size // held))], held


def rates(name: str, shape: str, device: torch.device, limits: Limits, options: argparse.Namespace) -> Iterator[Rate]:
    outputs, inputs = sizes = read_sizes(shape)
    layers, held = make_layers(name, sizes, device, options.mebibytes << 20)
    for rows in options.rows:
        x = torch.randn(rows, inputs, device=device).bfloat16()
        took = measure(device, lambda number, x=x: layers[number](x), len(layers), options.seconds)
        moved, operations = held + 2 * rows * (inputs + outputs), 2 * rows * inputs * outputs
        yield rate(name, shape, rows, took, moved, operations, limits)


def expert_rates(shape: str, device: torch.device, limits: Limits, options: argparse.Namespace) -> Iterator[Rate]:
    """A layer of experts with its router. Of the weights those of as many experts count as rows can choose at most."""
    experts, top, hidden, intermediate = sizes = read_sizes(shape)
    layers, held = make_experts(sizes, device, options.mebibytes << 20)
    for rows in options.rows:
        x = torch.randn(rows, hidden, device=device).bfloat16()
        took = measure(device, lambda number, x=x: layers[number](x), len(layers), options.seconds)
        moved = held * min(experts, rows * top) // experts + 4 * rows * hidden
        yield rate("moe bf16", shape, rows, took, moved, 6 * rows * top * hidden * intermediate, limits)


def read_sizes(shape: str) -> tuple[int, ...]:
    """``"12288x4096"`` -> 12288, 4096."""
    return tuple(map(int, shape.split("x")))


def rate(name: str, shape: str, rows: int, took: float, moved: int, operations: int, limits: Limits) -> Rate:
    gbps, tflops = moved / took / 1e9, operations / took / 1e12
    return Rate(name, shape, rows, took * 1e6, gbps, gbps / limits.copy_gbps, tflops, tflops / limits.matmul_tflops)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(QUANTIZERS))
    parser.add_argument("--shapes", default="12288x4096,4096x4096,22016x4096,4096x11008", help="outputs x inputs")
    parser.add_argument(
        "--experts", default="128x8x2048x768", help="experts x chosen x hidden x intermediate, or empty"
    )
    parser.add_argument("--rows", default="1,16,128,2048")
    parser.add_argument("--seconds", type=float, default=0.02, help="of one measured run")
    parser.add_argument("--mebibytes", type=int, default=512, help="weights of a format and shape; far over the caches")
    parser.add_argument("--json", action="store_true", help="one object a line, the limits among them")
    options = parser.parse_args()
    options.rows = [int(rows) for rows in options.rows.split(",")]

    device = find_device()
    if device is None:
        print("there is no GPU that torch can use: nothing to measure", file=sys.stderr)
        return 2
    with torch.inference_mode():
        limits = measure_limits(device, torch.bfloat16, 5 * options.seconds)
        name = torch.get_device_module(device).get_device_name(device)
        print(json.dumps({"device": name, **asdict(limits)}) if options.json else title(name, limits), flush=True)
        for found in every_rate(device, limits, options):
            print(json.dumps(asdict(found)) if options.json else line(found), flush=True)
    return 0


def every_rate(device: torch.device, limits: Limits, options: argparse.Namespace) -> Iterator[Rate]:
    for shape in filter(None, options.shapes.split(",")):
        for format in options.formats.split(","):
            yield from rates(format, shape, device, limits, options)
    for shape in filter(None, options.experts.split(",")):
        yield from expert_rates(shape, device, limits, options)


def title(name: str, limits: Limits) -> str:
    return (
        f"{name}: copies {limits.copy_gbps:.0f} GB/s, bf16 matmul {limits.matmul_tflops:.0f} TFLOP/s\n"
        f"{'format':>9} {'shape':>16} {'rows':>5} {'us':>9} {'GB/s':>7} {'memory':>7} {'TFLOP/s':>8} {'peak':>6}"
    )


def line(rate: Rate) -> str:
    return (
        f"{rate.format:>9} {rate.shape:>16} {rate.rows:>5} {rate.microseconds:>9.1f} {rate.gbps:>7.0f} "
        f"{rate.memory:>7.0%} {rate.tflops:>8.1f} {rate.peak:>6.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
