"""Triton's compilers, which need no GPU, take the kernels of attention, and what they share fits into its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lsv_testing.attention import cover_pairs

SHARED = {"90": 232448, "80": 166912, "86": 101376, "75": 65536, "gfx942": 65536}
"""Bytes of shared memory that a program may have."""
KINDS = {"90": "hopper", "80": "ampere", "86": "ada", "75": "small", "gfx942": "small"}
ONE = [("bfloat16", "128", "4", "bfloat16", feature) for feature in ("plain", "pattern")]
MANY = [
    (dtype, dim, ratio, dtype if stored == "auto" else stored, feature)
    for dtype, dim, ratio, stored, feature in cover_pairs(
        (
            ("bfloat16", "float32", "float16"),
            ("128", "64", "80", "256"),
            ("4", "1", "7"),
            ("auto", "float8_e4m3fn", "float8_e5m2", "int8"),
            ("plain", "all", "reading", "pattern"),
        )
    )
]


class Made(NamedTuple):
    """A kernel that a case needs: the shared memory it takes, and the instructions by which it multiplies matrices."""

    case: str
    kernel: str
    shared: int
    products: list[str]


def compile_for(architecture: str, cases: list[tuple[str, ...]], folder: Path, launches: str = "all") -> list[Made]:
    script = Path(__file__).with_name("compile_attention.py")
    words = [word for case in cases for word in case]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(script), architecture, KINDS.get(architecture, "default"), launches, *words],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [Made(*one) for one in json.loads(done.stdout)]


def test_kernels_compile(tmp_path: Path) -> None:
    made = compile_for("90", ONE, tmp_path, "decoding")
    assert {one.kernel for one in made} == {"_write", "attend_tiles", "merge_parts"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", SHARED)
def test_kernels_compile_for_every_kind_of_gpu(architecture: str, tmp_path: Path) -> None:
    """What decodes and what computes prompts multiply by the same instructions, whose results lie alike in a warp, or
    a row's bits would depend on it.
    """
    cases = MANY if architecture != "75" else [case for case in MANY if case[0] != "bfloat16"]
    found: dict[str, list[str]] = {}
    for case, kernel, shared, products in compile_for(architecture, cases, tmp_path):
        assert shared <= SHARED[architecture], f"{kernel} for {case} takes {shared} bytes of shared memory"
        if kernel == "attend_tiles":
            assert found.setdefault(case, products) == products, f"{case} by {products} and by {found[case]}"
