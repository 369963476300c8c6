"""AutoRound: layers packed like AWQ's and GPTQ's, those that differ, refusals, and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.autoround import make
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_testing.quantised import check_answers
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

Tensors = dict[str, torch.Tensor]
CONFIG: dict[str, Any] = {
    "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32, "sym": True,
    "data_type": "int", "iters": 200, "autoround_version": "0.9.4", "low_gpu_mem_usage": True,
}  # fmt: skip
LIKE_GPTQ, LIKE_GPTQ_V2, LIKE_AWQ = "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq"


def pack(
    weight: torch.Tensor, packing: str = LIKE_GPTQ, *, bits: int = 4, group: int = 32, symmetric: bool = True
) -> tuple[Tensors, torch.Tensor]:
    """Random codes of a weight's shape and scales of its size, packed, and what they mean."""
    outputs, inputs = weight.shape
    codes = torch.randint(0, 2**bits, (outputs, inputs))
    shape = (outputs, inputs // group)
    zeros = torch.full(shape, 2 ** (bits - 1)) if symmetric else torch.randint(1, 2**bits, shape)
    scales = ((torch.rand(shape) + 0.5) * weight.std() / 2 ** (bits - 1)).half()
    tensors = {"scales": scales.T}
    if packing == LIKE_AWQ:
        tensors["qweight"] = words(codes.T, [0, 2, 4, 6, 1, 3, 5, 7], 4)
        tensors["qzeros"] = words(zeros.T, [0, 2, 4, 6, 1, 3, 5, 7], 4)
    else:
        places = list(range(32 // bits))
        tensors["qweight"] = words(codes, places, bits).T
        tensors["qzeros"] = words(zeros.T - int(packing == LIKE_GPTQ), places, bits)
    spread = [each.float().repeat_interleave(group, dim=1) for each in (zeros, scales)]
    return tensors, (codes - spread[0]) * spread[1]


def words(codes: torch.Tensor, places: list[int], bits: int) -> torch.Tensor:
    """[rows, columns] -> int32 [rows, columns * bits / 32]; places[i] is the column of the i-th bits of a word."""
    columns = codes.unflatten(1, (-1, len(places)))
    found = torch.stack([columns[..., place] << bits * i for i, place in enumerate(places)]).sum(dim=0)
    return torch.where(found < 1 << 31, found, found - (1 << 32)).int()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("packing", "key", "value", "bits"),
    [
        (LIKE_GPTQ, "packing_format", LIKE_GPTQ, 4),
        (LIKE_GPTQ, "packing_format", "auto_round:gptq", 8),
        (LIKE_GPTQ, "backend", "auto_round:gptq:exllamav2", 4),
        (LIKE_GPTQ, "backend", "auto", 4),
        (LIKE_GPTQ_V2, "packing_format", LIKE_GPTQ_V2, 8),
        (LIKE_GPTQ_V2, "backend", "auto_round:exllamav2", 4),
        (LIKE_GPTQ, "packing_format", LIKE_GPTQ, 2),
        (LIKE_AWQ, "packing_format", LIKE_AWQ, 4),
        (LIKE_AWQ, "packing_format", "auto_round:awq", 4),
    ],
)
def test_weights_are_what_the_format_says(packing: str, key: str, value: str, bits: int, symmetric: bool) -> None:
    tensors, meant = pack(torch.randn(48, 128), packing, bits=bits, symmetric=symmetric)
    config = {**CONFIG, "packing_format": None, "bits": bits, "sym": symmetric, key: value}
    w = place(quantizer=make(config))
    source = TensorsSource({f"0.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()})
    layer: Any = fill_module(Column.even(w, ("0",), 128, 48), w, source).linear
    assert torch.equal(layer.weight(), meant)


def test_suite() -> None:
    def encode(weight: torch.Tensor) -> Tensors:
        scales = weight.unflatten(1, (-1, 32)).abs().amax(dim=-1).div(7).half()
        codes = (weight / scales.float().repeat_interleave(32, dim=1)).round().long().clamp(-8, 7) + 8
        zeros = torch.full_like(scales, 7).long()
        places = list(range(8))
        return {"qweight": words(codes, places, 4).T, "qzeros": words(zeros.T, places, 4), "scales": scales.T}

    check_quantizer(lambda: make(CONFIG), encode, tolerance=0.12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "packing_format is 'auto_round:llm_compressor'"),
        ({"bits": 1}, "bits is 1; what can be read is 2, 3, 4, 8"),
        ({"packing_format": LIKE_AWQ, "bits": 8}, "bits is 8; what can be read is 4"),
        ({"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
        ({"act_bits": 8}, "act_bits is 8; what can be read is 16, 32"),
        ({"super_bits": 6}, "super_bits = 6"),
        ({"extra_config": {"lm_head": {"bits": 5}}}, r"extra_config\.lm_head: bits is 5"),
        ({"extra_config": {"lm_head": {"act_bits": 8}}}, r"extra_config\.lm_head: act_bits is 8"),
        ({"extra_config": {"lm_head": 4}}, r"extra_config\.lm_head must be an object, got 4"),
        ({"extra_config": {"(": {"bits": 16}}}, "is not a regular expression"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make({**CONFIG, **change})


def quantised(config: dict[str, Any], part: str, role: Any = "column") -> bool:
    layer = LinearLayer(part, role, 64, (64,), False, torch.float32, (part,))
    return "qweight" in {tensor.suffix for tensor in make(config).stored(layer)}


def test_which_layers_are_packed() -> None:
    first, tenth = "model.layers.1.mlp.gate_proj", "model.layers.10.mlp.gate_proj"
    assert quantised(CONFIG, first)
    assert not quantised(CONFIG, "lm_head", "head")
    assert quantised({**CONFIG, "extra_config": {"lm_head": {"bits": 8}}}, "lm_head", "head")
    for blocks in ("model.layers.1,model.layers.2", [["model.layers.1"]], "model.layers.1."):
        config = {**CONFIG, "block_name_to_quantize": blocks}
        assert quantised(config, first)
        assert not quantised(config, tenth)
    plain = {"bits": 16, "data_type": "float"}
    assert quantised({**CONFIG, "extra_config": {"model.layers.1.mlp.gate": plain}}, first)
    assert not quantised({**CONFIG, "extra_config": {r".*layers\.1\.mlp\.gate.*": plain}}, first)
    assert not quantised({**CONFIG, "extra_config": {first: plain, ".*": {"bits": 8}}}, first)


@pytest.mark.parametrize(("family", "packing"), [("llama", LIKE_GPTQ), ("qwen3_moe", LIKE_AWQ)])
def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path, family: str, packing: str) -> None:
    def of_layer(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if "o_proj" in name:
            return None
        if name == "lm_head":
            return pack(weight, packing, group=16)
        return pack(weight, packing, symmetric=False)

    extra = {r".*o_proj": {"bits": 16, "data_type": "float"}, "lm_head": {"bits": 4, "group_size": 16, "sym": True}}
    config = {**CONFIG, "packing_format": packing, "sym": False, "extra_config": extra}
    check_answers(family, tmp_path, {**config, "block_name_to_quantize": "model.layers"}, of_layer)
