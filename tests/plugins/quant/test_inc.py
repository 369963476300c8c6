"""Files of Intel Neural Compressor, written in the structure its sources document."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.errors import CheckpointError, ConfigError
from lsv_quant.inc import Device, Selection, read_config, read_numbers, scales_from

QUANTIZE = {
    "mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw", "scale_format": "SCALAR",
    "allowlist": {"types": [], "names": []}, "blocklist": {"types": ["Softmax"], "names": ["lm_head"]},
    "dump_stats_path": "g2/inc_output",
}  # fmt: skip
LAYER = "model.layers.0.self_attn.qkv_proj"
NODES = {
    LAYER: {"inputs": [[[30.0]]], "outputs": [[[7.5]]], "params": {"weight": [[0.75]]}},
    "model.layers.0.self_attn.attn.impl.k_cache": {"inputs": [[[300.0]]], "outputs": [[[300.0]]]},
}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def measured(path: Path, nodes: Any = NODES, mode: str = "DynamicRange") -> Path:
    return write(path, {"GlobalRank": None, "LocalRank": 0, "Mode": mode, "Nodes": nodes})


def test_a_configuration(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "quant.json", QUANTIZE))
    assert (config.mode, config.observer, config.method) == ("quantize", "maxabs", "maxabs_hw")
    assert config.blocked == Selection(names=("lm_head",), types=("Softmax",))
    assert config.allowed == Selection()
    old = {"method": "HOOKS", "mode": "MEASURE", "blacklist": {"names": ["a"]}, "scale_params": {"input_backoff": 0.5}}
    config = read_config(write(tmp_path / "old.json", old))
    assert (config.mode, config.blocked.names, config.input_backoff, config.weight_backoff) == (
        "measure", ("a",), 0.5, 0.5,
    )  # fmt: skip


def test_where_files_are(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "quant.json", QUANTIZE))
    first = measured(tmp_path / "g2/inc_output_hooks_maxabs_0_2.json")
    scales = measured(tmp_path / "g2/inc_output_hooks_maxabs_MAXABS_HW.json", mode="Scale")
    assert config.file("DynamicRange", tmp_path, 0, 2) == first
    assert config.file("Scale", tmp_path, 0, 1) == scales
    with pytest.raises(ConfigError, match=r"maxabs_1_4\.json does not exist: measure the model with 4 ranks"):
        config.file("DynamicRange", tmp_path, 1, 4)


def test_measured_numbers(tmp_path: Path) -> None:
    found = read_numbers(measured(tmp_path / "a.json"), "DynamicRange")
    assert list(found) == list(NODES)
    assert found[LAYER].inputs[0].tolist() == [[30.0]]
    assert found[LAYER].params["weight"][0].tolist() == [[0.75]]
    assert found["model.layers.0.self_attn.attn.impl.k_cache"].params == {}


def test_scales_by_channel(tmp_path: Path) -> None:
    nodes = {"a": {"input": [0.5], "params": {"weight": {"0": [1.0, 2.0], "1": [[4.0]]}}}}
    found = read_numbers(measured(tmp_path / "a.json", nodes, "Scale"), "Scale")["a"]
    assert [part.tolist() for part in (*found.inputs, *found.params["weight"])] == [0.5, [1.0, 2.0], [[4.0]]]


@pytest.mark.parametrize(("device", "largest"), [("gaudi2", 240.0), ("gaudi3", 448.0)])
def test_scales_from_what_was_measured(tmp_path: Path, device: Device, largest: float) -> None:
    ranges = read_numbers(measured(tmp_path / "a.json"), "DynamicRange")
    methods = ("maxabs_arbitrary", "maxabs_pow2", "unit_scale")
    found = []
    for method in methods:
        config = read_config(write(tmp_path / "quant.json", {**QUANTIZE, "scale_method": method.upper()}))
        numbers = scales_from(ranges, config, device)[LAYER]
        found.append((numbers.inputs[0].item(), numbers.params["weight"][0].item()))
    exact = (30 / (largest * 0.25), 0.75 / (largest * 0.5))
    assert found[0] == pytest.approx(exact)
    assert found[1] == tuple(2.0 ** math.ceil(math.log2(scale)) for scale in exact)
    assert found[2] == (1.0, 1.0)


def test_scales_that_cost_a_device_nothing(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "quant.json", QUANTIZE))
    peaks = [1e-9, 0.001, 0.3, 60.0, 61.0, 5000.0, 1e9]
    ranges = read_numbers(measured(tmp_path / "a.json", {"a": {"inputs": peaks}}), "DynamicRange")
    (second, third) = (
        torch.stack(scales_from(ranges, config, device)["a"].inputs).tolist() for device in ("gaudi2", "gaudi3")
    )
    assert second == [2.0**-8, 2.0**-8, 2.0**-4, 1.0, 16.0, 16.0, 16.0]
    exact = [peak / 112 for peak in peaks]
    assert third == [2.0 ** min(7, math.ceil(math.log2(scale))) for scale in exact]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mode": "SOMETIMES"}, "mode is 'sometimes'"),
        ({"observer": "save"}, "observer is 'save'"),
        ({"colour": "red"}, "colour = 'red' can't be honoured"),
        ({"blocklist": {"colours": ["red"]}}, "colours = ['red'] can't be honoured"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, change: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path / "quant.json", {**QUANTIZE, **change}))
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ({"a": {"inputs": ["x"]}}, "x is not a number"),
        ({"a": {"inputs": [[-1.0]]}}, "negative or not numbers"),
        ({"a": {"inputs": [float("nan")]}}, "negative or not numbers"),
        ({"a": {"shape": [3]}}, "shape = [3] can't be honoured"),
        ({"a": None}, "a is null"),
        (None, "Nodes is missing"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, nodes: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_numbers(measured(tmp_path / "a.json", nodes), "DynamicRange")
    assert problem in caught.value.message


def test_files_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Mode is 'Scale'; what can be read is 'DynamicRange'"):
        read_numbers(measured(tmp_path / "a.json", mode="Scale"), "DynamicRange")
    (tmp_path / "b.json").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"b\.json is not JSON"):
        read_numbers(tmp_path / "b.json", "Scale")
    with pytest.raises(CheckpointError, match="can't read"):
        read_numbers(tmp_path / "c.json", "Scale")
    config = read_config(write(tmp_path / "quant.json", {**QUANTIZE, "scale_method": "maxabs_hw_opt_weight"}))
    with pytest.raises(ConfigError, match="maxabs_hw_opt_weight can't be derived from measurements"):
        scales_from({}, config, "gaudi2")
