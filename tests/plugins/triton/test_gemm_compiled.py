"""The kernels' compiled form, which needs a compiler but no GPU; what the interpreter accepts a compiler may not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def compiled(*arguments: str) -> list[dict[str, Any]]:
    """What the script prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_gemm.py")
    done = subprocess.run([sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def check(printed: list[dict[str, Any]]) -> None:
    """Sums of floats go through one instruction however many rows there are, whose size they may make differ; those of
    integers are exact in any.
    """
    found = {
        (one["layer"], one["kernel"], one["rows"]): {re.sub(r"(?<=m64)n\d+", "", name) for name in one["instructions"]}
        for one in printed
    }
    products = {layer for layer, kernel, rows in found if kernel == "multiply" and rows == 1}
    assert products
    for layer in products:
        one, many = found[layer, "multiply", 1], found[layer, "multiply", 2048]
        assert len(one) == 1, f"{layer} uses {one}"
        assert one == many, layer
        assert (layer, "add_parts", 1) in found


@pytest.fixture(scope="module")
def hopper() -> list[dict[str, Any]]:
    """Layers of all fast tests, by one process."""
    return compiled("90", "hopper", "w4", "w4 with offsets", "ordered", "fp8 both, odd", "fp8 static")


def test_one_instruction_for_every_number_of_rows(hopper: list[dict[str, Any]]) -> None:
    check([one for one in hopper if one["layer"] == "w4"])


def test_inputs_that_end_inside_a_step(hopper: list[dict[str, Any]]) -> None:
    """What is read of them is masked, which compilers take for fewer dtypes than interpreters do."""
    check([one for one in hopper if one["layer"] == "fp8 both, odd"])


def test_rows_rounded_by_a_stored_scale(hopper: list[dict[str, Any]]) -> None:
    found = [one for one in hopper if one["layer"] == "fp8 static"]
    check(found)
    assert "_round_by_scale" in {one["kernel"] for one in found}
    products = {name for one in found if one["kernel"] == "multiply" for name in one["instructions"]}
    assert all("e4m3" in name for name in products), products


def test_codes_are_not_converted(hopper: list[dict[str, Any]]) -> None:
    """A conversion takes four times as long as other instructions, and there would be one for every weight."""
    printed = [one for one in hopper if one["kernel"] == "multiply"]
    conversions = {(one["layer"], one["rows"]): one["conversions"] for one in printed}
    assert conversions["w4", 1] == conversions["w4", 2048] == conversions["ordered", 1] == 0
    assert conversions["w4 with offsets", 1] <= 16, "zero points, one for a group's weights"


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "kind"), [("80", "ampere"), ("90", "hopper"), ("100", "blackwell"), ("120", "ada")])
def test_every_layer_on_every_generation(arch: str, kind: str) -> None:
    found = compiled(arch, kind)
    check(found)
    assert {one["layer"] for one in found} >= {
        "plain",
        "w4",
        "fp8",
        "table",
        "ordered",
        "int8",
        "int8, whole rows",
        "int4",
        "fp8 both",
        "fp8 both, groups",
        "fp8 static",
        "fp8 static, groups",
        "moe",
        "spread moe",
    }
