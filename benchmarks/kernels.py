"""Rates of the packed linear layers on the CPU, for every weight format and number of rows, against what the machine
can do at most.

    python benchmarks/kernels.py [--formats bf16,int4/64] [--shapes 9728x896] [--rows 1,16,1024] [--isa avx512] [--json]
        [--against LIBRARY]

Weights are random and lie in memory, not in a cache: each call takes another copy of the matrix, as a model does.
Activations are packed or quantised inside the time. ``memory`` is the share of the best read bandwidth measured in the
same run that the weights' bytes alone make up, ``peak`` that of the instructions' peak rate; the larger of the two says
how far a kernel is from what binds it. Virtual machines drift: the limits are measured before each format, and the best
found so far in the run count. With ``--against``, another build of the native kernels is measured in turns with this
one, and ``ratio`` is its time over this one's.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from builds import PAUSE, load
from machine import Limits, measure_limits

from lsv_cpu import arena, native
from lsv_cpu.linear import GATES, LinearRecord
from lsv_cpu.machine import Machine
from lsv_cpu.team import set_team

LEAST_CALLS = 5
TURNS = 5  # of each build, where there are two
WARM = 0.01  # seconds of a turn in which the team wakes up
PANEL = 32  # outputs


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: ``number`` is ``Format`` of native/gemm/gemm.h, ``peak`` the binding rate. Codes have
    ``bits`` and perhaps an offset for each group.
    """

    number: int
    group: int
    dtype: torch.dtype
    peak: str
    bits: int = 0
    offset: bool = False
    signed: bool = False  # 8-bit codes are fp8 numbers, not whole ones


FORMATS = {
    "fp32": Format(0, 0, torch.float32, "fp32_tflops"),
    "fp16": Format(0, 0, torch.float16, "fp32_tflops"),
    "bf16": Format(0, 0, torch.bfloat16, "bf16_tflops"),
    "int8": Format(1, 0, torch.bfloat16, "int8_tops"),
    **{f"int4/{group}": Format(2, group, torch.bfloat16, "int8_tops") for group in (32, 64, 128)},
    **{f"w4/{group}": Format(3, group, torch.bfloat16, "bf16_tflops", 4) for group in (32, 64, 128)},
    "w4+/128": Format(3, 128, torch.bfloat16, "bf16_tflops", 4, offset=True),
    "w8": Format(3, 0, torch.bfloat16, "bf16_tflops", 8),
    "fp8": Format(3, 0, torch.bfloat16, "bf16_tflops", 8, signed=True),
    "w8/64": Format(3, 64, torch.bfloat16, "bf16_tflops", 8),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of the table: medians over calls; ``memory`` and ``peak`` are shares of the machine's limits."""

    format: str
    shape: str
    rows: int
    microseconds: float
    gbps: float
    memory: float
    tflops: float
    peak: float
    ratio: float | None = None


class Weights:
    """Copies of one random matrix, packed, together at least ``size`` bytes."""

    def __init__(self, library: ctypes.CDLL, format: Format, shape: str, size: int) -> None:
        self.format, self._library = format, library
        codes = torch.arange(1 << format.bits)
        values = codes.to(torch.uint8).view(torch.float8_e4m3fn) if format.signed else codes - len(codes) // 2
        self._values = values.bfloat16()
        self.outputs, self.inputs, gate = read_shape(shape)
        self.width = self.outputs // 2 if gate else self.outputs
        first = self._pack(gate)
        self.bytes = sum(len(part) for part in first)
        copies = [first, *(tuple(copy_of(part) for part in first) for _ in range(size // self.bytes))]
        self._kept = copies
        self._records = [self._record(gate, *copy) for copy in copies]

    def call(self, library: ctypes.CDLL, number: int, x: torch.Tensor, out: torch.Tensor) -> None:
        record = self._records[number % len(self._records)]
        library.lsv_linear(ctypes.byref(record), x.data_ptr(), x.stride(0), len(x), out.data_ptr())

    def _record(self, gate: int, *parts: torch.Tensor) -> LinearRecord:
        format = self.format
        record = LinearRecord(native.DTYPES[format.dtype], format.number, gate, format.group, self.outputs, self.inputs)
        record.table, record.bits, record.offset = self._values.data_ptr(), format.bits, format.offset
        for name, part in zip(("panels", "scales", "sums"), parts, strict=False):
            setattr(record, name, part.data_ptr())
        return record

    def _pack(self, gate: int) -> tuple[torch.Tensor, ...]:
        at = ctypes.byref(self._record(gate))
        panels, group = self._library.lsv_panels(at), self.format.group
        groups = self._library.lsv_inputs_padded(at) // group if group else 1
        parts = (arena.weights.take(panels * self._library.lsv_panel_bytes(at)),)
        if self.format.number and not self.format.bits:
            parts = (*parts, *(arena.weights.take(panels * count * PANEL * 4) for count in (groups, 1)))
        weights = random_weights(self.format, self.outputs, self.inputs)
        count = -(-self.inputs // group) if group else 1
        scales = torch.rand(1 + self.format.offset, self.outputs, count) / 1000
        record = self._record(gate, *parts)
        self._library.lsv_pack(ctypes.byref(record), weights.data_ptr(), scales.data_ptr())
        return parts


def random_weights(format: Format, outputs: int, inputs: int) -> torch.Tensor:
    if format.number == 0:
        return torch.randn(outputs, inputs).to(format.dtype)
    bits = {1: 8, 2: 4}.get(format.number, format.bits)
    return torch.randint(0, 256, (outputs, -(-inputs * bits // 8)), dtype=torch.uint8)


def copy_of(part: torch.Tensor) -> torch.Tensor:
    copy: torch.Tensor = arena.weights.take(len(part))
    return copy.copy_(part)


def read_shape(text: str) -> tuple[int, int, int]:
    """``"9728x896+silu"`` -> outputs, inputs and ``Gate`` of native/gemm/gemm.h."""
    size, _, gate = text.partition("+")
    outputs, inputs = map(int, size.split("x"))
    return outputs, inputs, GATES[gate] if gate else 0


def measure(builds: Sequence[ctypes.CDLL], weights: Weights, rows: int, seconds: float) -> list[float]:
    """Median seconds of a call of each build; they take turns."""
    x = torch.randn(rows, weights.inputs).to(weights.format.dtype)
    out = torch.empty(rows, weights.width, dtype=weights.format.dtype)
    took: list[list[float]] = [[] for _ in builds]
    numbers = itertools.count()

    def time_calls(build: ctypes.CDLL, least: int, most_seconds: float) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + most_seconds
        while len(times) < least or time.perf_counter() < end:
            began = time.perf_counter()
            weights.call(build, next(numbers), x, out)
            times.append(time.perf_counter() - began)
        return times

    turns = TURNS if len(builds) > 1 else 1
    for _ in range(turns):
        for build, times in zip(builds, took, strict=True):
            if turns > 1:
                time.sleep(PAUSE)
            time_calls(build, 1, WARM)
            times.extend(time_calls(build, LEAST_CALLS // turns + 1, seconds / turns))
    return [statistics.median(times) for times in took]


def rates(
    builds: Sequence[ctypes.CDLL], name: str, shape: str, limits: Limits, options: argparse.Namespace
) -> Iterator[Rate]:
    weights = Weights(builds[0], FORMATS[name], shape, options.mebibytes << 20)
    for rows in map(int, options.rows.split(",")):
        seconds, *others = measure(builds, weights, rows, options.seconds)
        gbps = weights.bytes / seconds / 1e9
        tflops = 2 * rows * weights.outputs * weights.inputs / seconds / 1e12
        most = limits[FORMATS[name].peak] or limits["fp32_tflops"]
        ratio = others[0] / seconds if others else None
        yield Rate(name, shape, rows, seconds * 1e6, gbps, gbps / limits["read_gbps"], tflops, tflops / most, ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--shapes", default="9728x896+silu,896x4864", help="outputs x inputs, a gate behind a plus")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=len(Machine().physical_cores()))
    parser.add_argument("--seconds", type=float, default=0.2, help="for each number of rows")
    parser.add_argument("--mebibytes", type=int, default=256, help="weights of a format and shape; far over the caches")
    parser.add_argument("--against", type=Path, help="another build of the native kernels")
    parser.add_argument("--json", action="store_true", help="one object a line, the limits among them")
    options = parser.parse_args()

    native.select(options.isa)
    library = native.library()
    if library is None:
        parser.error("there is no native code to measure")
    torch.set_num_threads(1)
    set_team(options.threads, None)
    builds = [library, *([load(options.against, options.threads)] if options.against else [])]
    isa = native.resolve_isa(options.isa)
    limits: Limits = {}
    for shape in options.shapes.split(","):
        for name in options.formats.split(","):
            found = measure_limits(options.threads)
            limits = {key: max(value, limits.get(key, 0)) for key, value in found.items()}
            print(json.dumps(limits) if options.json else title(shape, isa, limits), flush=True)
            for rate in rates(builds, name, shape, limits, options):
                print(json.dumps(asdict(rate)) if options.json else line(rate), flush=True)


def title(shape: str, isa: str, limits: Limits) -> str:
    return (
        f"\n{shape}, {isa}, {limits['threads']:g} threads; at most {limits['read_gbps']:.1f} GB/s, "
        f"fp32 {limits['fp32_tflops']:.2f}, bf16 {limits['bf16_tflops']:.2f}, int8 {limits['int8_tops']:.2f} T/s\n"
        f"{'format':>9} {'rows':>5} {'us':>10} {'GB/s':>7} {'memory':>7} {'T/s':>7} {'peak':>6} {'ratio':>6}"
    )


def line(rate: Rate) -> str:
    return (
        f"{rate.format:>9} {rate.rows:>5} {rate.microseconds:>10.1f} {rate.gbps:>7.1f} {rate.memory:>7.0%} "
        f"{rate.tflops:>7.3f} {rate.peak:>6.0%}" + ("" if rate.ratio is None else f" {rate.ratio:>6.2f}")
    )


if __name__ == "__main__":
    main()
