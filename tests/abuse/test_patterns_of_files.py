"""A regular expression in a file can't stop the process that reads it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv.adapters.peft import read_config
from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints import autoround, awq, compressed_tensors, gptq
from lsv_runtime.weights.quantizer import WEIGHT, LinearLayer, StoredTensor, Unquantised, WithIgnored

LINEAR = r"(([a-z_.0-9]+)+)+!"
"""A pattern that takes Python's re years."""
LIMITED = r"^((a|aa|[b-z._0-9]+)+)+$(?<!w)"
"""A pattern that RE2 does not support, because of its last group."""
NAME = "model.layers.0.self_attn." + "a" * 60 + "_proj.w"
PLAIN: dict[str, Any] = {"bits": 4, "group_size": 128}
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
pytestmark = pytest.mark.timeout(60)

Match = Callable[[Path, str], object]


def adapter(**keys: Any) -> Match:
    def match(folder: Path, pattern: str) -> object:
        found = json.dumps({"r": 4, "target_modules": ["q_proj"], **keys}).replace("PATTERN", json.dumps(pattern)[1:-1])
        (folder / "adapter_config.json").write_text(found)
        config = read_config(folder)
        return config.means(NAME), config.scale_of(NAME)

    return match


def quantised(make: Callable[[Any], Any], method: str, **keys: Any) -> Match:
    def match(folder: Path, pattern: str) -> tuple[StoredTensor, ...]:
        config = json.dumps({"quant_method": method, **keys}).replace("PATTERN", json.dumps(pattern)[1:-1])
        layer = LinearLayer(NAME, "column", 128, (128,), False, WEIGHT.dtype)  # type: ignore[arg-type]
        return make(json.loads(config)).stored(layer)

    return match


READERS: dict[str, Match] = {
    "alpha_pattern": adapter(alpha_pattern={"PATTERN": 8}),
    "rank_pattern": adapter(rank_pattern={"PATTERN": 8}),
    "target_modules": adapter(target_modules="PATTERN"),
    "compressed-tensors ignore": quantised(
        compressed_tensors.make, "compressed-tensors", format="int-quantized", ignore=["re:PATTERN"],
        config_groups={"group_0": GROUP},
    ),
    "compressed-tensors targets": quantised(
        compressed_tensors.make, "compressed-tensors", format="int-quantized",
        config_groups={"group_0": {**GROUP, "targets": ["re:PATTERN"]}},
    ),
    "auto-round": quantised(autoround.make, "auto-round", **PLAIN, extra_config={"PATTERN": {"bits": 16}}),
    "gptq": quantised(gptq.make, "gptq", **PLAIN, dynamic={"-:PATTERN": {}}),
    "awq": quantised(awq.make, "awq", **PLAIN, dynamic={"-:PATTERN": {}}),
    "quantization_ignore": lambda _, pattern: WithIgnored(Unquantised(), [f"re:{pattern}"]).stored(
        LinearLayer(NAME, "column", 128, (128,), False, WEIGHT.dtype)  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_a_pattern_that_backtracks_costs_no_time(reader: str, tmp_path: Path) -> None:
    began = time.monotonic()
    READERS[reader](tmp_path, LINEAR)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("reader", ["rank_pattern", "compressed-tensors ignore", "auto-round", "gptq"])
def test_a_pattern_that_needs_backtracking_is_stopped_and_named(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsv_base.untrusted.patterns.SECONDS", 0.25)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=r"the pattern .* takes too long to match"):
        READERS[reader](tmp_path, LIMITED)
    assert time.monotonic() - began < 5
