"""Sparse weights of compressed-tensors: packed weight by weight in the test, made dense, refused, and answering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.compressed_tensors import make
from lsv_quant.checkpoints.sparse_source import SparseSource
from lsv_testing.quantised import answer, write_quantised
from lsv_testing.tensors import TensorsSource

Tensors = dict[str, torch.Tensor]
SPARSITY = {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"], "ignore": ["lm_head"],
            "global_sparsity": 0.5, "registry_requires_subclass": False}  # fmt: skip


def prune(weight: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.tensor(mark_two(weight)), weight, 0.0)


def pack(weight: torch.Tensor, *, flat: bool = False) -> Tensors:
    """A weight stored value by value: of 2:4 two of each four, if need be zeros; ``flat``: what is not zero."""
    marked = mark_two(weight.float()) if not flat else (weight.float() != 0).tolist()
    values, offsets = [], []
    bits = torch.zeros(len(weight), -(-weight.shape[1] // 8), dtype=torch.uint8)
    for row, columns in enumerate(marked):
        offsets.append(len(values))
        for column, stored in enumerate(columns):
            if stored:
                values.append(weight[row, column])
                bits[row, column // 8] += 1 << column % 8
    found = {"bitmask": bits, "shape": torch.tensor(weight.shape)[:, None], "compressed": torch.stack(values)}
    if flat:
        return {**found, "row_offsets": torch.tensor(offsets)}
    return {**found, "compressed": found["compressed"].reshape(len(weight), -1)}


def mark_two(weight: torch.Tensor) -> list[list[bool]]:
    """The two largest of four neighbours."""
    largest = weight.unflatten(1, (-1, 4)).abs().topk(2).indices.tolist()
    return [[place in two for two in row for place in range(4)] for row in largest]


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def source(weight: torch.Tensor, **options: Any) -> SparseSource:
    tensors = {f"a.{suffix}": tensor for suffix, tensor in pack(weight, **options).items()}
    return SparseSource(TensorsSource({**tensors, "a.bias": torch.ones(3), "b.shape": torch.ones(2)}))


@pytest.mark.row("F-413")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("flat", [False, True])
def test_weights_are_dense_again(dtype: torch.dtype, flat: bool) -> None:
    weight = prune(10 * torch.randn(6, 20 if flat else 24)).to(dtype)
    if flat:
        weight[2] = weight[0]
        weight.view(torch.uint8)[4] = 0  # a row without any
    found = source(weight, flat=flat)
    assert {name: info.shape for name, info in found.tensors().items()} == {
        "a.weight": tuple(weight.shape), "a.bias": (3,), "b.shape": (2,),
    }  # fmt: skip
    assert found.tensors()["a.weight"].dtype == dtype
    for first, last in ((0, 6), (2, 5), (5, 6)):
        assert torch.equal(as_bits(found.read("a.weight", first, last)), as_bits(weight[first:last]))
    assert torch.equal(found.read("a.bias", 0, 3), torch.ones(3))


def test_of_four_zeros_two_are_stored() -> None:
    weight = prune(torch.randn(4, 16))
    weight[1, 4:8] = 0
    assert torch.equal(source(weight).read("a.weight", 0, 4), weight)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"a.bitmask": torch.zeros(4, 2, dtype=torch.uint8)}, "a.bitmask marks 0 weights of rows 0 to 3, and"),
        ({"a.bitmask": torch.zeros(4, 3, dtype=torch.uint8)}, r"a.bitmask must be torch.uint8 \[4, 2\]"),
        ({"a.shape": torch.tensor([4, 18])}, r"a.bitmask must be torch.uint8 \[4, 3\]"),
        ({"a.shape": torch.tensor([4, 16, 1])}, "a.shape must be two numbers"),
        ({"a.bitmask": None}, "a.compressed is a sparse weight without shape and bitmask"),
        ({"a.compressed": torch.zeros(30)}, r"a.row_offsets must be torch.int64 \[4\], found none"),
    ],
)
def test_tensors_that_contradict_one_another(change: dict[str, torch.Tensor | None], problem: str) -> None:
    tensors = {f"a.{suffix}": tensor for suffix, tensor in pack(prune(torch.randn(4, 16))).items()}
    given = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=problem):
        SparseSource(TensorsSource(given)).read("a.weight", 0, 4)


def test_offsets_beyond_the_weights() -> None:
    tensors = {f"a.{suffix}": tensor for suffix, tensor in pack(prune(torch.randn(4, 16)), flat=True).items()}
    tensors["a.row_offsets"][3] = 1000
    with pytest.raises(CheckpointError, match=r"a.bitmask marks 8 weights of rows 3 to 3, and a.compressed has 0"):
        SparseSource(TensorsSource(tensors)).read("a.weight", 3, 4)


GROUP = {"targets": ["Linear"], "input_activations": None, "output_activations": None}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def plain(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    return {"weight": weight}, weight


def in_int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(dim=1) / 127
    codes = (weight / scales[:, None]).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes * scales[:, None]


def in_fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(dim=1) / 448
    codes = (weight / scales[:, None]).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales[:, None]


@pytest.mark.row("F-413")
@pytest.mark.parametrize(
    ("config", "quantise", "options"),
    [
        ({}, plain, {}),
        ({"format": "int-quantized", "config_groups": {"a": GROUP | {"weights": INT8, "input_activations": TOKENS}}},
         in_int8, {"quantization": "int8", "quantization_ignore": ["lm_head"]}),
        pytest.param(
            {"format": "float-quantized", "config_groups": {"a": GROUP | {"weights": INT8 | {"type": "float"}}}},
            in_fp8, {}, marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_sparse_checkpoint_answers_like_the_dense_one(
    tmp_path: Path,
    config: dict[str, Any],
    quantise: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]],
    options: dict[str, Any],
) -> None:
    def sparse(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if name == "lm_head":
            return None
        tensors, meant = quantise(prune(weight))
        return tensors | pack(tensors.pop("weight")), meant

    whole = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "sparsity_config": SPARSITY, **config}
    packed, dense = write_quantised("llama", tmp_path, whole, sparse)
    assert answer(packed) == answer(dense, **options)
    assert make(whole).name == "compressed-tensors"
