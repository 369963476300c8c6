"""fp8: values of codes, weights rounded from plain ones, and checkpoints with scales of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.request.adapter import LoRARequest
from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant import fp8
from lsv_quant.checkpoints import fp8_checkpoint
from lsv_quant.tables import E4M3
from lsv_runtime.nn.embed import Head
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.codebook import ROUNDED
from lsv_runtime.weights.place import Part
from lsv_runtime.weights.quantizer import PlainLinear, Quantizer
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.quantised import answer, check_adapted, check_answers, write_quantised
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 64]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
Tensors = dict[str, torch.Tensor]


def value_of(code: int) -> float:
    """By the definition: bias 7, no infinities, and all ones are not a number."""
    sign, exponent, mantissa = (-1.0) ** (code >> 7), code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (2.0**-6 * mantissa / 8 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8))


@pytest.mark.row("F-996")
def test_values_of_codes() -> None:
    wanted = torch.tensor([value_of(code) for code in range(256)])
    torch.testing.assert_close(torch.tensor(E4M3), wanted, rtol=0, atol=0, equal_nan=True)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(wanted.to(dtype).float().nan_to_num(), wanted.nan_to_num())


def codes_of(values: torch.Tensor) -> torch.Tensor:
    """The nearest code of each number, that with an even mantissa of two as near: float32 -> e4m3."""
    table = torch.tensor([value_of(code) for code in range(0x7F)])
    order = [*range(0, 0x7F, 2), *range(1, 0x7F, 2)]
    places = (values.abs()[..., None] - table[order]).abs().argmin(dim=-1)
    codes = torch.tensor(order)[places] + 128 * (values.signbit())
    return codes.to(torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.row("F-430")
@pytest.mark.parametrize("name", ["make", "make_tensor"])
def test_rounding_a_plain_weight(name: str) -> None:
    weight = torch.randn(20, 70)
    weight[3] = 0
    axes: dict[str, Any] = {"dim": 1, "keepdim": True} if name == "make" else {}
    scale = weight.abs().amax(**axes) / 448
    scale = torch.where(scale == 0, 1.0, scale)
    found = layer_of(getattr(fp8, name)({}), {"0.weight": weight}, weight.shape).weight()
    assert torch.equal(found, codes_of(weight / scale).float() * scale)


@pytest.mark.row("F-403")
@pytest.mark.parametrize("name", ["make", "make_tensor"])
def test_activations_may_be_rounded_but_the_reference_does_not(name: str) -> None:
    layer = layer_of(getattr(fp8, name)({}), {"0.weight": torch.randn(20, 70)}, (20, 70))
    assert {ROUNDED, "float8_e4m3fn"} <= layer.spec().flags
    x = torch.randn(3, 70)
    torch.testing.assert_close(layer(x), x @ layer.weight().T)


@pytest.mark.parametrize("name", ["make", "make_tensor"])
def test_the_output_head_stays_plain(name: str) -> None:
    w = place(quantizer=getattr(fp8, name)({}))
    weight = torch.randn(20, 64)
    head = fill_module(Head(w / "head", 20, 64), w, TensorsSource({"head.weight": weight}))
    assert isinstance(head.linear, PlainLinear)
    assert torch.equal(head.linear.weight, weight)


def layer_of(quantizer: Quantizer, tensors: Tensors, shape: Any) -> Any:
    w = place(quantizer=quantizer)
    return fill_module(Column.even(w, ("0",), shape[1], shape[0]), w, TensorsSource(tensors)).linear


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    weight = torch.ones(3, 64)
    weight[1, 3] = value
    with pytest.raises(CheckpointError, match=r"0\.weight holds weights that are not finite"):
        layer_of(fp8.make({}), {"0.weight": weight}, weight.shape)


def by_block(weight: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight in e4m3, the scale of each block, and what they stand for: one block after another."""
    outputs, inputs = weight.shape
    scales = torch.zeros(-(-outputs // rows), -(-inputs // columns))
    codes, decoded = torch.zeros_like(weight).to(torch.float8_e4m3fn), torch.zeros_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            block = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
            scales[row, column] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[row, column]).to(torch.float8_e4m3fn)
            decoded[block] = codes[block].float() * scales[row, column]
    return codes, scales, decoded


def encode_blocks(weight: torch.Tensor) -> Tensors:
    codes, scales, _ = by_block(weight, 32, 64)
    return {"weight": codes, "weight_scale_inv": scales}


def encode_tensor(weight: torch.Tensor) -> Tensors:
    codes, scales, _ = by_block(weight, *weight.shape)
    return {"weight": codes, "weight_scale": scales.reshape(()), "input_scale": torch.tensor([0.5])}


def encode_channels(weight: torch.Tensor) -> Tensors:
    codes, scales, _ = by_block(weight, 1, weight.shape[1])
    return {"weight": codes, "weight_scale": scales}


def encode_static_channels(weight: torch.Tensor) -> Tensors:
    return {**encode_channels(weight), "input_scale": torch.tensor(0.02)}


@pytest.mark.parametrize(
    ("config", "encode"),
    [
        (BLOCKS, encode_blocks),
        (STATIC, encode_tensor),
        (STATIC, encode_static_channels),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, encode_channels),
    ],
    ids=["blocks", "tensor", "channels", "fbgemm"],
)
def test_suite(config: Mapping[str, Any], encode: Any) -> None:
    make = fp8_checkpoint.make_fbgemm if config["quant_method"] == "fbgemm_fp8" else fp8.make
    check_quantizer(lambda: make(config), encode, tolerance=0.05)


@pytest.mark.row("F-419")
def test_fbgemm_rounds_tokens_within_its_bound() -> None:
    """Kernels of devices that multiply fp8 do; the reference leaves activations as they are."""
    weight = torch.randn(24, 64)
    config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    tensors = {f"0.{name}": tensor for name, tensor in encode_channels(weight).items()}
    layer = layer_of(fp8_checkpoint.make_fbgemm(config), tensors, weight.shape)
    assert layer.input_bound == 1200
    assert {ROUNDED, "float8_e4m3fn"} <= layer.spec().flags
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer(x), x @ layer.weight().T)


@pytest.mark.parametrize("bound", [0, -1.0, "1200", True, float("nan")])
def test_bounds_of_fbgemm_that_are_refused(bound: Any) -> None:
    with pytest.raises(CheckpointError, match="activation_scale_ub must be a positive number, got"):
        fp8_checkpoint.make_fbgemm({"quant_method": "fbgemm_fp8", "activation_scale_ub": bound})


def test_blocks_of_fused_parts_whose_outputs_do_not_fill_them() -> None:
    outputs, inputs = (200, 72), 320
    weights = [torch.randn(count, inputs) for count in outputs]
    parts = [by_block(weight, 128, 128) for weight in weights]
    tensors = {}
    for number, (codes, scales, _) in enumerate(parts):
        tensors |= {f"{number}.weight": codes, f"{number}.weight_scale_inv": scales}
    w = place(quantizer=fp8.make({**BLOCKS, "weight_block_size": [128, 128]}))
    column = Column(w, [Part(str(n), count, 0, count) for n, count in enumerate(outputs)], inputs)
    layer: Any = fill_module(column, w, TensorsSource(tensors)).linear
    assert torch.equal(layer.weight(), torch.cat([decoded for _, _, decoded in parts]))


def test_a_cut_inside_a_block_is_refused() -> None:
    w = place(rank=1, size=2, quantizer=fp8.make({**BLOCKS, "weight_block_size": [128, 128]}))
    with pytest.raises(ConfigError, match="cover 128 each"):
        Row(w, "o", 128, 128, reads=(64, 128))


def test_each_fused_part_has_a_scale_of_its_own() -> None:
    weights = [torch.randn(count, 48) * spread for count, spread in ((40, 1.0), (24, 9.0))]
    parts = [by_block(weight, *weight.shape) for weight in weights]
    tensors = {}
    for number, (codes, scales, _) in enumerate(parts):
        tensors |= {f"{number}.weight": codes, f"{number}.weight_scale": scales[0], f"{number}.input_scale": scales[0]}
    w = place(quantizer=fp8.make(STATIC))
    column = Column(w, [Part(str(n), len(weight), 0, len(weight)) for n, weight in enumerate(weights)], 48)
    layer: Any = fill_module(column, w, TensorsSource(tensors)).linear
    assert torch.equal(layer.weight(), torch.cat([decoded for _, _, decoded in parts]))
    assert torch.equal(layer.input_scale, torch.cat([scales[0] for _, scales, _ in parts]).max()[None])


@pytest.mark.row("F-404")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("encode", [encode_tensor, encode_static_channels])
def test_activations_are_rounded_by_the_stored_scale(dtype: torch.dtype, encode: Any) -> None:
    """Some are beyond the range of the scale, some below its smallest number."""
    tensors = encode(torch.randn(24, 64))
    w = place(quantizer=fp8.make(STATIC), dtype=dtype)
    source = TensorsSource({f"0.{name}": tensor for name, tensor in tensors.items()})
    layer: Any = fill_module(Column.even(w, ("0",), 64, 24), w, source).linear
    scale = float(tensors["input_scale"])
    x = (torch.randn(5, 64) * scale * torch.logspace(-3, 4, 64)).to(dtype)
    rounded = codes_of((x.float() / scale).clamp(-448, 448)).double() * scale
    wanted = rounded @ (tensors["weight"].double() * tensors["weight_scale"].double().reshape(-1, 1)).T
    tolerance = (2**-8 if dtype == torch.bfloat16 else 1e-5) * float(wanted.abs().max())
    torch.testing.assert_close(layer(x).double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        (0.0, "is 0: activations can't be rounded by it"),
        (torch.inf, "holds weights that are not finite"),
        (torch.nan, "holds weights that are not finite"),
    ],
)
def test_scales_of_activations_that_are_refused(scale: float, problem: str) -> None:
    tensors = {**encode_tensor(torch.randn(8, 32)), "input_scale": torch.tensor(scale)}
    with pytest.raises(CheckpointError, match=rf"0\.input_scale {problem}"):
        layer_of(fp8.make(STATIC), {f"0.{name}": tensor for name, tensor in tensors.items()}, (8, 32))


def test_names_of_scales_with_an_empty_block_size() -> None:
    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False}
    codes, scales, decoded = by_block(torch.randn(16, 32), 16, 32)
    tensors = {"0.weight": codes, "0.weight_scale_inv": scales[0, 0], "0.activation_scale": torch.tensor(0.1)}
    assert torch.equal(layer_of(fp8.make(config), tensors, decoded.shape).weight(), decoded)


def test_what_is_left_plain() -> None:
    w = place(quantizer=fp8.make({**BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp.gate", "down_proj"]}))
    assert (w / "model").linear("head", [Part("lm_head", 64, 0, 64)], 64).format == "plain"
    for name, format in (("mlp.down_proj", "plain"), ("mlp.gate_proj", "coded")):
        assert w.linear("column", [Part(f"model.layers.0.{name}", 64, 0, 64)], 64).format == format


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"fmt": "e4m3fnuz"}, "fmt is 'e4m3fnuz'; what can be read is 'e4m3', 'float8_e4m3fn'"),
        ({"activation_scheme": "sometimes"}, "activation_scheme is 'sometimes'"),
        ({"weight_block_size": [128]}, "weight_block_size must be 2 positive whole numbers, got [128]"),
        ({"weight_block_size": [0, 128]}, "weight_block_size must be 2 positive whole numbers"),
        ({"expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
        ({"ignored_layers": "lm_head"}, "ignored_layers must be a list of names"),
        ({"rotation": "hadamard"}, "rotation = 'hadamard' can't be honoured"),
    ],
)
def test_what_is_refused(change: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        fp8.make({**BLOCKS, **change})
    assert problem in caught.value.message


def pack_blocks(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    codes, scales, decoded = by_block(weight, 16, 32)
    return None if name == "lm_head" else ({"weight": codes, "weight_scale_inv": scales}, decoded)


def pack_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    if name == "lm_head" or "layers.1" in name:
        return None
    codes, scales, decoded = by_block(weight, *weight.shape)
    return {"weight": codes, "weight_scale": scales[0], "input_scale": torch.tensor([0.5])}, decoded


def pack_dynamic(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    if name == "lm_head" or "layers.1" in name:
        return None
    codes, scales, decoded = by_block(weight, *weight.shape)
    return {"weight": codes, "weight_scale_inv": scales[0]}, decoded


@pytest.mark.parametrize(
    ("family", "config", "pack"),
    [
        ("qwen3_moe", {**BLOCKS, "weight_block_size": [16, 32]}, pack_blocks),
        ("qwen2", {**BLOCKS, "weight_block_size": None, "modules_to_not_convert": ["model.layers.1"]}, pack_dynamic),
    ],
)
def test_a_checkpoint_answers_like_what_it_means(
    tmp_path: Path, family: str, config: Mapping[str, Any], pack: Any
) -> None:
    check_answers(family, tmp_path, config, pack)


@pytest.mark.row("F-404")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_static_activations_are_part_of_the_answer(family: str, tmp_path: Path) -> None:
    """Alike by the platform's kernels and by plain torch, and not like the plain weights with coarse activations."""
    config = {**STATIC, "ignored_layers": ["lm_head", "model.layers.1"]}
    found, plain = write_quantised(family, tmp_path, config, pack_tensor)
    assert answer(found) == answer(found, reference_ops=True)
    assert answer(found) != answer(plain)


@pytest.mark.row("F-728")
def test_adapters_go_on_top(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "weight_block_size": None, "ignored_layers": ["lm_head", "model.layers.1"]}
    check_adapted("llama", tmp_path, config, pack_dynamic)


@pytest.mark.row("F-728")
def test_adapters_go_on_top_of_static_activations(tmp_path: Path) -> None:
    """By the platform's kernels as by plain torch; a DoRA goes by the lengths of weights, too."""
    config = {**STATIC, "ignored_layers": ["lm_head", "model.layers.1"]}
    packed, plain = write_quantised("llama", tmp_path, config, pack_tensor)
    write_adapter(tmp_path / "adapter", plain, list(linear_layers(plain)), dora=True)
    adapter = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    found = answer(packed, adapter)
    assert found == answer(packed, adapter, reference_ops=True)
    assert found != answer(packed)


def test_random_weights() -> None:
    for config in (BLOCKS, STATIC, {}):
        w = place(quantizer=fp8.make(config))
        column = Column.even(w, ("0", "1"), 64, 64)
        layer = fill_module(column, w, DummySource(w.declaration.slots)).linear
        assert layer(torch.randn(2, 64)).isfinite().all()
