"""GPTQ: tensors packed in the test as AutoGPTQ and GPTQModel define them, decoded, cut, refused, and answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lsv_models.plugin
import lsv_quant.plugin
from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.gptq import make
from lsv_runtime.nn.linear import Row
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.worker.experts.balancer import held_tensors
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.quantised import check_adapted, check_answers, fused_layer, parts_source, write_quantised
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import fill_module, place

Tensors = dict[str, torch.Tensor]
CONFIG: dict[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False, "damp_percent": 0.1,
    "true_sequential": True, "checkpoint_format": "gptq", "lm_head": False, "meta": {"quantizer": ["gptqmodel:4"]},
}  # fmt: skip
ACT_ORDER = {**CONFIG, "desc_act": True}
TOLERANCES = {2: 0.6, 3: 0.3, 4: 0.12, 8: 0.01}


def pack(
    weight: torch.Tensor,
    group: int = 32,
    *,
    bits: int = 4,
    symmetric: bool = False,
    v2: bool = False,
    order: torch.Tensor | None = None,
) -> tuple[Tensors, torch.Tensor]:
    """The tensors of a weight, and what they mean: (code - zero) * scale. ``order`` lists inputs by group."""
    inputs = weight.shape[1]
    group, top = inputs if group == -1 else group, 2**bits - 1
    order = torch.arange(inputs) if order is None else order
    g_idx = torch.empty(inputs, dtype=torch.int32)
    g_idx[order] = torch.arange(inputs, dtype=torch.int32) // group
    groups = weight[:, order].unflatten(1, (-1, group))
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = ((2 * torch.maximum(-low, high) if symmetric else high - low) / top).half()
    zeros = torch.full_like(low, (top + 1) // 2) if symmetric else (-low / scales.float()).round().clamp(0, top)
    column_scales, column_zeros = scales.float()[:, g_idx], zeros[:, g_idx]
    codes = (weight / column_scales + column_zeros).round().clamp(0, top)
    tensors = {
        "qweight": words(codes.T, bits, 0),
        "qzeros": words((zeros if v2 else (zeros - 1) % (top + 1)).T, bits, 1),
        "scales": scales.T,
        "g_idx": g_idx,
    }
    return tensors, (codes - column_zeros) * column_scales


def words(codes: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """Codes that follow one another along an axis -> int32 of their bits, the first in the low ones."""
    numbers = codes.movedim(axis, -1).to(torch.uint8).numpy()
    stream = np.unpackbits(numbers[..., None], axis=-1, bitorder="little")[..., :bits]
    packed = np.packbits(stream.reshape(*numbers.shape[:-1], -1), axis=-1, bitorder="little")
    return torch.from_numpy(packed.view(np.int32)).movedim(-1, axis).contiguous()


def decoded(parts: list[Tensors], widths: list[int], inputs: int, config: dict[str, Any]) -> torch.Tensor:
    weight: torch.Tensor = fused_layer(make(config), parts, widths, inputs).weight()
    return weight


@pytest.mark.row("F-410")
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("act_order", [False, True])
def test_weights_are_what_the_format_says(bits: int, symmetric: bool, v2: bool, group: int, act_order: bool) -> None:
    order = torch.randperm(384) if act_order else None
    found = [
        pack(torch.randn(outputs, 384), group, bits=bits, symmetric=symmetric, v2=v2, order=order)
        for outputs in (64, 32)
    ]
    config = {
        **CONFIG, "bits": bits, "sym": symmetric, "group_size": group, "desc_act": act_order,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }  # fmt: skip
    weight = decoded([tensors for tensors, _ in found], [64, 32], 384, config)
    assert torch.equal(weight, torch.cat([meant for _, meant in found]))


@pytest.mark.parametrize("bits", TOLERANCES)
@pytest.mark.parametrize("group", [32, -1])
def test_suite(bits: int, group: int) -> None:
    config = {**CONFIG, "bits": bits, "group_size": group}
    check_quantizer(lambda: make(config), lambda w: pack(w, group, bits=bits)[0], tolerance=TOLERANCES[bits])


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("desc_act", [False, True])
def test_inputs_are_cut_between_groups(desc_act: bool, bits: int) -> None:
    tensors, meant = pack(torch.randn(32, 256), bits=bits)
    parts = []
    for rank in (0, 1):
        w = place(quantizer=make({**CONFIG, "bits": bits, "desc_act": desc_act}), rank=rank, size=2)
        source = parts_source([{**tensors, "bias": torch.zeros(32)}])
        row: Any = fill_module(Row(w, "0", 256, 32, reads=w.shard.split(256, "inputs")), w, source)
        parts.append(row.linear.weight())
    assert torch.equal(torch.cat(parts, dim=1), meant)


def test_groups_that_lie_apart_cannot_be_cut() -> None:
    for order in (torch.randperm(256), torch.arange(256).roll(128)):
        tensors, _ = pack(torch.randn(16, 256), order=order)
        w = place(quantizer=make(ACT_ORDER), rank=1, size=2)
        with pytest.raises(
            CheckpointError, match=r"0\.g_idx: .* can't be split over ranks: use tensor_parallel_size 1"
        ):
            fill_module(Row(w, "0", 256, 16, reads=(128, 256)), w, parts_source([tensors]))


def test_group_indices_that_cannot_be_honoured() -> None:
    (one, _), (other, _) = (pack(torch.randn(16, 64), order=torch.randperm(64)) for _ in range(2))
    with pytest.raises(CheckpointError, match=r"0\.g_idx, 1\.g_idx differ"):
        decoded([one, other], [16, 16], 64, ACT_ORDER)
    with pytest.raises(CheckpointError, match=r"0\.g_idx: the inputs of a group lie apart.*no desc_act"):
        decoded([one], [16], 64, CONFIG)
    with pytest.raises(CheckpointError, match=r"0\.g_idx: .* not 32 each"):
        decoded([{**one, "g_idx": torch.zeros(64, dtype=torch.int32)}], [16], 64, ACT_ORDER)


def test_a_layer_is_what_its_tensors_hold() -> None:
    """The order of its inputs, too: so experts in this format move between ranks."""
    layers = [
        fused_layer(make(ACT_ORDER), [pack(torch.randn(64, 128), order=torch.randperm(128))[0]], [64], 128)
        for _ in range(2)
    ]
    x = torch.randn(5, 128)
    before = [layer(x) for layer in layers]
    for (name, mine), (same, theirs) in zip(*map(held_tensors, layers), strict=True):
        assert name == same
        kept = mine.clone()
        mine.copy_(theirs)
        theirs.copy_(kept)
    assert [torch.equal(layer(x), other) for layer, other in zip(layers, reversed(before), strict=True)] == [True] * 2


def test_tensors_that_may_be_absent() -> None:
    tensors, meant = pack(torch.randn(16, 64), symmetric=True)
    fewer = {suffix: tensors[suffix] for suffix in ("qweight", "scales")}
    assert torch.equal(decoded([fewer], [16], 64, {**CONFIG, "sym": True}), meant)
    assert torch.equal(decoded([tensors], [16], 64, CONFIG), meant)
    with pytest.raises(CheckpointError, match=r"0\.qzeros: not all zero points are 8"):
        decoded([pack(torch.randn(16, 64))[0]], [16], 64, {**CONFIG, "sym": True})


def test_a_bias_where_there_is_none_must_be_zero() -> None:
    tensors, meant = pack(torch.randn(16, 64))
    assert torch.equal(decoded([{**tensors, "bias": torch.zeros(16).half()}], [16], 64, CONFIG), meant)
    with pytest.raises(CheckpointError, match=r"0\.bias is not zero, but the architecture has no bias there"):
        decoded([{**tensors, "bias": torch.ones(16).half()}], [16], 64, CONFIG)
    for stored_bias in (False, True):
        layer = LinearLayer("0", "row", 64, (16,), False, torch.float32, ("0",), None, stored_bias)
        assert ("bias" in {tensor.suffix for tensor in make(CONFIG).stored(layer)}) != stored_bias


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 5}, "bits is 5; what can be read is 2, 3, 4, 8"),
        ({"bits": None}, "bits is None"),
        ({"group_size": 0}, "group_size must be -1 or a multiple of 8, got 0"),
        ({"sym": 1}, "sym is 1; what can be read is True, False"),
        ({"checkpoint_format": "awq"}, "checkpoint_format is 'awq'; what can be read is 'gptq', 'gptq_v2', 'marlin'"),
        ({"format": "bitblas"}, "format is 'bitblas'"),
        ({"pack_dtype": "int16"}, "pack_dtype is 'int16'"),
        ({"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
        ({"rotation": "hadamard"}, "rotation = 'hadamard' can't be honoured"),
        ({"dynamic": {"-:(": {}}}, "is not a regular expression"),
        ({"dynamic": {"x": {"bits": 6}}}, r"dynamic\.x: bits is 6"),
        ({"dynamic": {"x": {"adapter": {"rank": 8}}}}, r"dynamic\.x: adapter = "),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make({**CONFIG, **change})


def test_parts_of_a_fused_layer_are_packed_alike() -> None:
    tensors, _ = pack(torch.randn(16, 64))
    with pytest.raises(CheckpointError, match="0 and 1 are quantised differently"):
        decoded([tensors, tensors], [16, 16], 64, {**CONFIG, "dynamic": {"1": {"bits": 8}}})


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path, family: str) -> None:
    orders = {inputs: torch.randperm(inputs) for inputs in (32, 64, 96)}
    config = {**ACT_ORDER, "lm_head": True}
    check_answers(family, tmp_path, config, lambda name, weight: pack(weight, order=orders[weight.shape[1]]))


def test_layers_of_their_own(tmp_path: Path) -> None:
    """Eight bits in one layer, another left plain, and of the rest only the named."""

    def of_layer(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if "layers.1.self_attn" in name or "o_proj" in name or name == "lm_head":
            return None
        return pack(weight, 16, bits=8, symmetric=True) if "layers.0.mlp" in name else pack(weight)

    config = {
        **CONFIG,
        "dynamic": {
            r"+:.*layers\.0\.mlp": {"bits": 8, "group_size": 16, "sym": True},
            r"-:.*layers\.1\.self_attn": {},
        },
        "modules_in_block_to_quantize": [
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"],
            ["mlp.down_proj"],
        ],
    }  # fmt: skip
    check_answers("llama", tmp_path, config, of_layer)


@pytest.mark.row("F-728")
def test_adapters_go_on_top(tmp_path: Path) -> None:
    check_adapted("llama", tmp_path, CONFIG, lambda name, weight: None if name == "lm_head" else pack(weight))


@pytest.mark.parametrize("config", [{**CONFIG, "sym": True}, ACT_ORDER])
def test_random_weights(tmp_path: Path, config: dict[str, Any]) -> None:
    folder, _ = write_quantised("llama", tmp_path, config, lambda name, weight: None)
    catalog = catalog_of(lsv_models.plugin, lsv_quant.plugin)
    declared = load(engine_config(folder, "llama", quantization="gptq", load_format="dummy"), catalog)
    assert all(torch.isfinite(tensor).all() for tensor in declared.model.buffers() if not tensor.is_meta)
