"""Layers that the compressed-tensors package packs mean here what they mean there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsv_quant.checkpoints.compressed_tensors import make
from lsv_runtime.nn.linear import Column
from lsv_testing.tensors import TensorsSource, fill_module, place

compressed_tensors = pytest.importorskip("compressed_tensors", reason="the package is not installed")

INT = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
FP4 = INT | {"type": "float"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "W4A16": ("pack-quantized", INT),
    "W4A16 asymmetric": ("pack-quantized", INT | {"symmetric": False}),
    "W3A16": ("pack-quantized", INT | {"num_bits": 3}),
    "W3A16 asymmetric": ("pack-quantized", INT | {"num_bits": 3, "symmetric": False}),
    "W2A16 asymmetric": ("pack-quantized", INT | {"num_bits": 2, "symmetric": False}),
    "W8A16 by output": ("pack-quantized", FLOAT | {"type": "int", "symmetric": False}),
    "int8": ("naive-quantized", FLOAT | {"type": "int"}),
    "FP8": ("float-quantized", FLOAT),
    "FP8 in blocks": ("float-quantized", FLOAT | {"strategy": "block", "block_structure": [32, 32]}),
    "MXFP4": ("mxfp4-pack-quantized", FP4),
    "NVFP4": ("nvfp4-pack-quantized", FP4 | {"strategy": "tensor_group", "group_size": 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_round_trip(case: str) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    format, numbers = CASES[case]
    scheme = QuantizationScheme(targets=["Linear"], weights=dict(numbers))
    weight = torch.randn(96, 128)
    groups = in_blocks(weight, numbers)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    whole = {"weight_global_scale": 448 * 6 / weight.abs().amax()[None]} if case == "NVFP4" else {}
    scales, zeros = calculate_qparams(low, high, scheme.weights, whole.get("weight_global_scale"))
    tensors = {"weight": weight, "weight_scale": scales, **whole}
    tensors |= {} if numbers["symmetric"] else {"weight_zero_point": zeros}
    compressor = BaseCompressor.get_value_from_registry(format)
    packed = compressor.compress(tensors, scheme)
    wanted = compressor.decompress(dict(packed), scheme)["weight"]
    rounding = 2**-8 if wanted.dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(decoded(format, numbers, packed), wanted.float(), rtol=2 * rounding, atol=1e-7)


def in_blocks(weight: torch.Tensor, numbers: dict[str, Any]) -> torch.Tensor:
    """What shares a scale along the last axis."""
    if numbers["strategy"] == "block":
        rows, columns = numbers["block_structure"]
        return weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).transpose(1, 2).flatten(2)
    return weight.unflatten(1, (-1, numbers.get("group_size", weight.shape[1])))


def decoded(format: str, numbers: dict[str, Any], packed: dict[str, torch.Tensor]) -> torch.Tensor:
    group = {"targets": ["Linear"], "weights": numbers}
    found = {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}
    found["version"] = compressed_tensors.__version__
    w = place(quantizer=make(found))
    column = Column.even(w, ("0",), 128, 96)
    layer: Any = fill_module(column, w, TensorsSource({f"0.{name}": tensor for name, tensor in packed.items()})).linear
    weight: torch.Tensor = layer.weight()
    return weight
