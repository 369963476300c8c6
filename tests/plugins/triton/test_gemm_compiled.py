"""The kernels' compiled form, which needs a compiler but no GPU; what the interpreter accepts a compiler may not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def compiled(*arguments: str) -> dict[tuple[str, str, int], set[str]]:
    """The matrix unit's instructions by layer, kernel and rows, without the sizes that rows make differ."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_gemm.py")
    done = subprocess.run([sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {
        (one["layer"], one["kernel"], one["rows"]): {re.sub(r"(?<=m64)n\d+", "", name) for name in one["instructions"]}
        for one in map(json.loads, done.stdout.splitlines())
    }


def check(found: dict[tuple[str, str, int], set[str]]) -> None:
    """Sums of floats go through one instruction however many rows there are; those of integers are exact in any."""
    products = {layer for layer, kernel, rows in found if kernel == "multiply" and rows == 1}
    assert products
    for layer in products:
        one, many = found[layer, "multiply", 1], found[layer, "multiply", 2048]
        assert len(one) == 1, f"{layer} uses {one}"
        assert one == many, layer
        assert (layer, "add_parts", 1) in found


def test_one_instruction_for_every_number_of_rows() -> None:
    check(compiled("90", "hopper", "w4"))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "kind"), [("80", "ampere"), ("90", "hopper"), ("100", "hopper"), ("120", "ada")])
def test_every_layer_on_every_generation(arch: str, kind: str) -> None:
    found = compiled(arch, kind)
    check(found)
    assert {layer for layer, _, _ in found} >= {
        "plain",
        "w4",
        "fp8",
        "table",
        "ordered",
        "int8",
        "int4",
        "fp8 both",
        "fp8 both, groups",
        "moe",
    }
