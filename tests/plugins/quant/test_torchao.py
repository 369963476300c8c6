"""torchao: weights flattened as its safetensors support names them; where the package is installed, by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.torchao import make
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.place import Part
from lsv_testing.quantised import check_answers, fused_layer
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import fill_module, place

Tensors = dict[str, torch.Tensor]
Packed = tuple[Tensors, torch.Tensor]


def named(type_: str, data: Any, version: int = 1) -> dict[str, Any]:
    return {"_type": type_, "_version": version, "_data": data}


def config(type_: str, version: int = 2, **fields: Any) -> dict[str, Any]:
    default = named(type_, {"set_inductor_config": True, **fields}, version)
    return {
        "quant_method": "torchao", "quant_type": {"default": default}, "modules_to_not_convert": None,
        "include_input_output_embeddings": False, "untie_embedding_weights": False,
    }  # fmt: skip


def grouped(size: int) -> dict[str, Any]:
    return named("PerGroup", {"group_size": size})


def dtype(name: str) -> dict[str, Any]:
    return {"_type": "torch.dtype", "_data": name}


def flat(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None) -> Tensors:
    tensors = {"_weight_qdata": codes, "_weight_scale": scales}
    return tensors if zeros is None else {**tensors, "_weight_zero_point": zeros}


def pack_int(weight: torch.Tensor, bits: int = 8, group: int = 0, symmetric: bool = True) -> Packed:
    """``(code - zero) * scale``, codes of any width in int8."""
    groups, half = weight.unflatten(1, (-1, group or weight.shape[1])), 1 << bits - 1
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = (torch.maximum(-low, high) / (half - 0.5) if symmetric else (high - low) / (2 * half - 1)).bfloat16()
    zeros = torch.zeros_like(low) if symmetric else (-half - low / scales.float()).round().clamp(-half, half - 1)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(-half, half - 1)
    meant = ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)
    return flat(codes.flatten(1).to(torch.int8), scales, zeros.to(torch.int8)), meant


def pack_float(weight: torch.Tensor) -> Packed:
    scales = weight.abs().amax(dim=1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return flat(codes, scales), codes.float() * scales


def pack_whole(weight: torch.Tensor) -> Packed:
    scale = (weight.abs().max() / 448).reshape(1, 1)
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return flat(codes, scale), codes.float() * scale


def pack_int4(weight: torch.Tensor) -> Packed:
    """Codes from -8 to 7, ``code * scale + zero``; the even input in the low half of a byte, groups before outputs."""
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scales = ((high - low) / 15).bfloat16()
    zeros = (low + scales * 8).bfloat16()
    codes = ((groups - zeros[..., None]) / scales[..., None]).round().clamp(-8, 7)
    meant = (codes * scales.float()[..., None] + zeros.float()[..., None]).flatten(1)
    codes = codes.flatten(1).to(torch.int8)
    return flat(codes[:, ::2] & 15 | codes[:, 1::2] << 4, scales.T, zeros.T), meant


CASES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Packed]]] = {
    "int8": (config("Int8WeightOnlyConfig", granularity=named("PerRow", {"dim": -1}), group_size=None), pack_int),
    "int8 in groups": (config("Int8WeightOnlyConfig", granularity=grouped(32)), lambda w: pack_int(w, 8, 32)),
    "int4 in int8": (
        config(
            "IntxWeightOnlyConfig", weight_dtype=dtype("int4"), granularity=grouped(32), scale_dtype=None,
            mapping_type=named("MappingType", "ASYMMETRIC"), intx_packing_format=named("F", "UNPACKED_TO_INT8"),
        ),
        lambda w: pack_int(w, 4, 32, False),
    ),
    "int4 in int8 with activations": (
        config(
            "Int8DynamicActivationIntxWeightConfig", weight_dtype=dtype("int4"), weight_granularity=grouped(32),
            weight_mapping_type=named("MappingType", "SYMMETRIC"), act_mapping_type=named("MappingType", "ASYMMETRIC"),
        ),
        lambda w: pack_int(w, 4, 32),
    ),
    "int4": (config("Int4WeightOnlyConfig", group_size=32, int4_packing_format=named("F", "PLAIN")), pack_int4),
    "float8": (config("Float8WeightOnlyConfig", weight_dtype=dtype("float8_e4m3fn")), pack_float),
    "float8 with activations": (
        config(
            "Float8DynamicActivationFloat8WeightConfig", granularity=[named("PerTensor", {}), named("PerTensor", {})],
            activation_dtype=dtype("float8_e4m3fn"), packing_format=named("F", "PLAIN"), activation_value_lb=None,
        ),
        pack_whole,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("case", CASES)


def layer_of(found: Mapping[str, Any], parts: list[Tensors], widths: list[int], inputs: int) -> Any:
    return fused_layer(make(found), parts, widths, inputs)


@EACH
def test_decoded_weights_are_what_is_meant(case: str) -> None:
    found, pack = CASES[case]
    packed = [pack(torch.randn(width, 128)) for width in (72, 44)]
    weight = layer_of(found, [tensors for tensors, _ in packed], [72, 44], 128).weight()
    assert torch.equal(weight, torch.cat([meant for _, meant in packed]))


@EACH
def test_suite(case: str) -> None:
    found, pack = CASES[case]
    check_quantizer(lambda: make(found), lambda weight: pack(weight)[0], tolerance=0.2 if "int4" in case else 0.05)


@EACH
def test_random_weights(case: str) -> None:
    w = place(quantizer=make(CASES[case][0]))
    column = Column.even(w, ("0", "1"), 128, 64)
    linear: Any = fill_module(column, w, DummySource(w.declaration.slots)).linear
    assert linear.weight().shape == (128, 128)


BY_TOKEN = config(
    "Int8DynamicActivationInt8WeightConfig", act_mapping_type=named("MappingType", "SYMMETRIC"),
    granularity=named("PerRow", {"dim": -1}), weight_only_decode=False, reduce_range=False,
)  # fmt: skip


def test_int8_by_token_runs_in_int8() -> None:
    tensors, meant = pack_int(torch.randn(40, 160))
    layer = layer_of(BY_TOKEN, [tensors], [40], 160)
    assert layer.op == "linear.int8"
    assert "group" not in layer.spec().shape, "activations have a scale per token"
    assert torch.equal(layer.codes * layer.scales[:, None], meant)
    check_quantizer(lambda: make(BY_TOKEN), lambda weight: pack_int(weight)[0], tolerance=0.03)


def test_symmetric_weights_have_no_zero_points() -> None:
    for found in (BY_TOKEN, CASES["int8"][0]):
        tensors, _ = pack_int(torch.randn(8, 32))
        tensors["_weight_zero_point"][3] = 1
        with pytest.raises(CheckpointError, match=r"0\._weight_zero_point is not 0 everywhere"):
            layer_of(found, [tensors], [8], 32)


def test_what_is_left_plain() -> None:
    found = CASES["int8"][0]
    head = [Part("lm_head", 64, 0, 64)]
    assert place(quantizer=make(found)).linear("head", head, 64).format == "plain"
    w = place(quantizer=make({**found, "modules_to_not_convert": ["model.layers.0"]}))
    assert w.linear("head", head, 64).format == "coded"
    assert w.linear("column", [Part("model.layers.0.mlp.up_proj", 64, 0, 64)], 64).format == "plain"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (config("Int8WeightOnlyConfig", version=1), "_version is 1; what can be read is 2"),
        (config("FPXWeightOnlyConfig"), "_type is 'FPXWeightOnlyConfig'; what can be read is 'Int8WeightOnlyConfig'"),
        ({**BY_TOKEN, "quant_type": "int4_weight_only"}, "quant_type must be an object, got 'int4_weight_only'"),
        ({**BY_TOKEN, "include_input_output_embeddings": True}, "include_input_output_embeddings is True"),
        (config("Int4WeightOnlyConfig", int4_packing_format=named("F", "TILE_PACKED_TO_4D")), "'TILE_PACKED_TO_4D'"),
        (config("Int8WeightOnlyConfig", granularity=named("PerBlock", {})), "_type is 'PerBlock'"),
        (config("Int8WeightOnlyConfig", granularity=named("PerGroup", {})), "group_size is missing"),
        (config("Float8WeightOnlyConfig", weight_dtype=dtype("float8_e5m2")), "_data is 'float8_e5m2'"),
        (config("Int8WeightOnlyConfig", colour="red"), "colour = 'red' can't be honoured"),
        ({"quant_method": "torchao", "quant_type": {}}, "quant_type has no default"),
    ],
)
def test_what_is_refused(found: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        make(found)
    assert problem in caught.value.message


def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path) -> None:
    found, pack = CASES["int4 in int8"]
    check_answers("qwen2", tmp_path, found, lambda name, weight: None if name == "lm_head" else pack(weight))


def test_weights_that_torchao_itself_flattens() -> None:
    pytest.importorskip("torchao", reason="the package is not installed")
    from torchao import quantization
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization.granularity import PerGroup

    for made in (
        quantization.Int8WeightOnlyConfig(),
        quantization.Int8WeightOnlyConfig(granularity=PerGroup(32)),
        quantization.Float8WeightOnlyConfig(),
        quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    ):
        linear = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
        quantization.quantize_(linear, made)
        tensors, _ = flatten_tensor_state_dict(linear.state_dict())
        parts = {name.removeprefix("0."): tensor for name, tensor in tensors.items()}
        found = {"quant_method": "torchao", "quant_type": {"default": json.loads(json.dumps(config_to_dict(made)))}}
        wanted: Any = linear[0].weight
        torch.testing.assert_close(layer_of(found, [parts], [48], 64).weight(), wanted.dequantize())
