"""Which tiles Triton's matrix products should have on a GPU: times them all, the best first.

    python benchmarks/gpu_tiles.py [--formats int4/64,nf4/64] [--shape 12288x4096] [--rows 1,16,128] [--jobs 8] [--json]

What it finds belongs into ``lsv_triton/device_table.py``, under the kind of the GPU. Kernels are compiled in processes
side by side first; that takes minutes. Sizes of a row's sums (``span``, ``part``) must be the same for all numbers of
rows, or a row's bits would depend on its company. Exits 2 without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from gpu_kernels import QUANTIZERS, Call, find_device, make_layers, measure, read_sizes

from lsv_triton import device_table
from lsv_triton.device_table import Launch
from lsv_triton.gemm import product, weights

Tile = dict[str, int]

COPIES = 256 << 20
"""Bytes of weights that calls go through, far over the caches."""
FEW, SOME = 16, 64
SIZES = {"outputs": (64, 128), "warps": (4, 8), "stages": (2, 3, 4), "span": (64, 128), "part": (1024,)}


def tiles(rows: int) -> Iterator[Tile]:
    """Those to try for so many rows."""
    tall = (FEW,) if rows <= FEW else (SOME,) if rows <= SOME else (SOME, 128)
    for height, sizes in itertools.product(tall, itertools.product(*SIZES.values())):
        yield {"rows": height, **dict(zip(SIZES, sizes, strict=True))}


class Products:
    """Calls of a format's product with tiles that are given."""

    def __init__(self, shape: str, device: torch.device) -> None:
        self._shape, self._device = read_sizes(shape), device
        self._tile: Tile = {}
        self._plain = device_table.launch
        self._packs: dict[tuple[str, int, int], tuple[list[weights.Packed], int]] = {}
        product.launch = weights.launch = self._launch
        product.size_of = lambda rows: "few"

    def _launch(self, op: str, device: torch.device) -> Launch:
        found, tile = self._plain(op, device), self._tile
        if op == "product":
            return Launch({**found.sizes, "span": tile["span"], "part": tile["part"]}, found.warps, found.stages)
        if op == "product.few":
            return Launch({"rows": tile["rows"], "outputs": tile["outputs"]}, tile["warps"], tile["stages"])
        return found

    def call(self, name: str, tile: Tile, rows: int, copies: int = COPIES) -> tuple[Call, int]:
        """A call, and how many copies of the weights it goes through."""
        self._tile = tile
        key = name, tile["span"], tile["outputs"]
        if key not in self._packs:
            self._packs.clear()  # one format at a time fits into any device
            (layer, *_), held = make_layers(name, self._shape, self._device, 0)
            first = layer.linear.kernel._stack.packed
            more = (dataclasses.replace(first, weight=first.weight.clone()) for _ in range(copies // held))
            self._packs[key] = [first, *more], held
        packs = self._packs[key][0]
        x = torch.randn(rows, self._shape[1], device=self._device).bfloat16()
        out = torch.empty(rows, self._shape[0], device=self._device, dtype=torch.bfloat16)
        return lambda number: product.float_product(x, packs[number % len(packs)], out), len(packs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name in QUANTIZERS if name not in ("torch", "int8", "fp8xfp8")]
    parser.add_argument("--formats", default=",".join(known))
    parser.add_argument("--shape", default="12288x4096", help="outputs x inputs")
    parser.add_argument("--rows", default="1,16,64,128")
    parser.add_argument("--seconds", type=float, default=0.004, help="of one measured run")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    device = find_device()
    if device is None:
        print("there is no GPU that torch can use: nothing to measure", file=sys.stderr)
        return 2
    cases = [
        (name, tile, rows)
        for name in options.formats.split(",")
        for rows in map(int, options.rows.split(","))
        for tile in tiles(rows)
    ]
    cases.sort(key=lambda case: (case[0], case[1]["span"], case[1]["outputs"]))
    with torch.inference_mode():
        products = Products(options.shape, device)
        if options.share is not None:
            for name, tile, rows in cases[options.share :: options.jobs]:
                with suppress(Exception):  # told when it is to be timed
                    products.call(name, tile, rows, copies=0)[0](0)
            return 0
        compile_all(options.jobs)
        found = [take_time(products, case, device, options.seconds) for case in cases]
    for one in sorted(found, key=lambda one: (one["format"], one["count"], one["microseconds"])):
        print(json.dumps(one) if options.json else "  ".join(f"{key} {value}" for key, value in one.items()))
    return 0


def compile_all(jobs: int) -> None:
    """Fill Triton's cache."""
    command = [sys.executable, *sys.argv]
    running = [subprocess.Popen([*command, "--share", str(share)], stderr=subprocess.DEVNULL) for share in range(jobs)]
    for one in running:
        one.wait()


def take_time(products: Products, case: tuple[str, Tile, int], device: torch.device, seconds: float) -> dict[str, Any]:
    name, tile, rows = case
    try:
        call, copies = products.call(name, tile, rows)
        took = round(measure(device, call, copies, seconds) * 1e6, 2)
    except Exception as error:  # a tile that a device has no room for
        return {"format": name, "count": rows, "microseconds": float("inf"), **tile, "error": str(error)[:80]}
    return {"format": name, "count": rows, "microseconds": took, **tile}


if __name__ == "__main__":
    sys.exit(main())
