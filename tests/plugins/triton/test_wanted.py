"""Which kernels a configuration wants: none in emulation unless asked for, the plain product only for the row rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv.plugins import load
from lsv.resolve import resolve
from lsv.settings import Declared, gather
from lsv.settings.flags import parse
from lsv.settings.options import for_scope
from lsv_runtime.worker.load.survey import bound_ops
from lsv_testing.tiny import tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("wanted"))


def bound(checkpoint: Path, *flags: str) -> dict[str, tuple[str, str]]:
    plugins = load()
    declared = Declared(for_scope("engine", plugins.settings()))
    line = parse([f"--model={checkpoint}", "--platform=cuda", "--emulate", "--dtype=float32", *flags], declared)
    config = resolve(gather(declared, line.given), plugins)
    return {one.op: (one.implementation, one.why) for one in bound_ops(config, plugins.catalog)}


def test_an_emulated_platform_runs_plain_torch(checkpoint: Path) -> None:
    ops = bound(checkpoint)
    assert ops.pop("attention_backend")[0] == "lsv_triton.attention.torch_backend:TorchAttention"
    assert {implementation for implementation, _ in ops.values()} == {"reference"}
    assert "--triton-interpret" in ops["rms_norm"][1]


def test_the_interpreter_may_be_asked_for(checkpoint: Path, device: object) -> None:
    ops = bound(checkpoint, "--triton-interpret")
    assert ops["layer"][0] == "lsv_triton.layers.layer:FusedLayer"
    assert ops["linear"] == ("reference", ops["linear"][1])
    assert "--triton-row-invariant" in ops["linear"][1]


def test_products_that_obey_the_row_rule_may_be_asked_for(checkpoint: Path, device: object) -> None:
    ops = bound(checkpoint, "--triton-interpret", "--triton-row-invariant")
    assert ops["linear"][0] == "lsv_triton.gemm.linear:TritonLinear"
