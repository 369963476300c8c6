"""Keys of quantization_config that no format reads: of writers, descriptive ones, and those that may matter."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from lsv.resolve.locate import merge
from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints import autoround, awq, compressed_tensors, fp8_checkpoint, gptq
from lsv_quant.checkpoints.scheme import Scheme
from lsv_runtime.weights.quantizer import LinearLayer, PerLayer, Unquantised

Make = Callable[[Mapping[str, Any]], Any]
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS}
FORMATS: dict[str, tuple[Make, dict[str, Any]]] = {
    "gptq": (gptq.make, {"bits": 4, "group_size": 32, "sym": True}),
    "awq": (awq.make, {"bits": 4, "group_size": 32, "zero_point": False}),
    "auto-round": (autoround.make, {"bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"}),
    "compressed-tensors": (compressed_tensors.make, {"format": "float-quantized", "config_groups": {"group_0": GROUP}}),
    "fp8": (fp8_checkpoint.make, {"activation_scheme": "dynamic"}),
}
AUTOROUND = {
    "autoround_version": "0.15", "iters": 0, "lr": 0.01, "low_gpu_mem_usage": True, "seqlen": 2048,
    "static_attention_granularity": "tensor", "static_kv_granularity": "tensor",
}  # fmt: skip


def chosen(quantizer: Any, name: str) -> Any:
    """The format of one layer."""
    layer = LinearLayer(name, "column", 128, (64,), False, torch.float32, (name,))
    while isinstance(quantizer, PerLayer):
        quantizer = quantizer.choose(layer)
    return quantizer


def made(method: str, /, **keys: Any) -> Any:
    make, config = FORMATS[method]
    return make({"quant_method": method, **config, **keys})


@pytest.mark.parametrize("method", FORMATS)
def test_keys_that_describe_serve_all_formats(method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made(
        method, **AUTOROUND, meta={"quantizer": ["gptqmodel:7.3.4"]}, damp_percent=0.1, quantization_status="compressed"
    )
    assert not caplog.records


@pytest.mark.parametrize("method", FORMATS)
@pytest.mark.parametrize("key", ["method", "provider", "producer"])
def test_a_writer_may_name_itself(method: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """GPTQModel repeats the method, AutoRound names itself in other formats."""
    caplog.set_level(logging.INFO)
    value = method if key == "method" else "auto-round"
    made(method, **{key: value})
    assert f"only name the writer are passed over: {key} = '{value}'" in caplog.text


@pytest.mark.parametrize("method", FORMATS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("rotation", "hadamard"), ("provider", {"scale": 2}), ("method", "another"), ("static_kv_dtype", "fp8")],
)
def test_keys_that_may_change_numbers_are_refused_with_the_way_around(method: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{key} = .* can't be honoured: nothing is known") as refused:
        made(method, **{key: value})
    overrides = json.loads(refused.value.message.partition("--hf-overrides '")[2].removesuffix("'"))
    make, config = FORMATS[method]
    whole = {"quantization_config": {"quant_method": method, **config, key: value}}
    make(merge(whole, overrides)["quantization_config"])


def test_the_way_around_a_key_of_an_inner_object() -> None:
    with pytest.raises(CheckpointError, match="colour = 'red'") as refused:
        made("compressed-tensors", config_groups={"group_0": {**GROUP, "weights": {**WEIGHTS, "colour": "red"}}})
    overrides = json.loads(refused.value.message.partition("--hf-overrides '")[2].removesuffix("'"))
    inner = {"config_groups": {"group_0": {"weights": {"colour": None}}}}
    assert overrides == {"quantization_config": inner}
    assert Scheme({}).path == ("quantization_config",)


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("gptq", {"act_bits": 8}, "act_bits is 8"),
        ("awq", {"act_bits": 8}, "act_bits is 8"),
        ("awq", {"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
        ("fp8", {"bits": 4}, "bits is 4"),
        ("fp8", {"data_type": "nv_fp"}, "data_type is 'nv_fp'"),
        ("fp8", {"group_size": 32}, "group_size is 32"),
    ],
)
def test_numbers_of_autoround_are_read_in_formats_of_others(method: str, keys: dict[str, Any], message: str) -> None:
    made(method, bits=8 if method == "fp8" else 4, data_type="fp8" if method == "fp8" else "int", act_bits=None)
    with pytest.raises(CheckpointError, match=message):
        made(method, **keys)


def test_a_kv_cache_scheme_may_stand_alone() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    quantizer = made("compressed-tensors", format="dense", config_groups={}, kv_cache_scheme=scheme)
    assert isinstance(chosen(quantizer, "model.layers.0.mlp.up_proj"), Unquantised)
    with pytest.raises(CheckpointError, match="config_groups is empty: expected at least one group of layers, or a kv"):
        made("compressed-tensors", format="dense", config_groups={})


def test_layers_that_awq_leaves_plain_or_packs_differently() -> None:
    dynamic = {"-:.*shared_experts.*": {}, r"+:.*\.down_proj": {"group_size": 64, "sym": False}}
    quantizer = made("awq", dynamic=dynamic)
    assert isinstance(chosen(quantizer, "model.layers.0.mlp.shared_experts.up_proj"), Unquantised)
    down, up = (chosen(quantizer, f"model.layers.0.mlp.{name}_proj") for name in ("down", "up"))
    assert (down.group, down.symmetric) == (64, False)
    assert (up.group, up.symmetric) == (32, True)
    with pytest.raises(CheckpointError, match="bits is 8"):
        made("awq", dynamic={".*": {"bits": 8}})
