"""compressed-tensors: tensors built from the definitions of its forms, decoded, cut, refused, and answering."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant.checkpoints.compressed_tensors import make
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.place import Part
from lsv_testing.quantised import answer, check_answers, fused_layer, write_quantised
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

Tensors = dict[str, torch.Tensor]
Words = Callable[[torch.Tensor, int], torch.Tensor]
Packed = tuple[Tensors, torch.Tensor]
"""Tensors by suffix, and what they mean."""
TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
STATIC_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def config(format: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, **others: Any) -> Any:
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "global_compression_ratio": 1.5, "kv_cache_scheme": None, "ignore": ["lm_head"], "sparsity_config": {},
        "config_groups": {"group_0": group}, **others,
    }  # fmt: skip


def ints(bits: int, *, group: int = 0, symmetric: bool = True, **others: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, **strategy, **others}


def floats(strategy: str, **others: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": strategy, **others}


def round_ints(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """Codes with a sign [outputs, inputs], scales and zero points [outputs, groups], and what they mean."""
    groups, half = weight.unflatten(1, (-1, group or weight.shape[1])), 1 << bits - 1
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = (torch.maximum(-low, high) / (half - 0.5) if symmetric else (high - low) / (2 * half - 1)).bfloat16()
    zeros = torch.zeros_like(low) if symmetric else (-half - low / scales.float()).round().clamp(-half, half - 1)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(-half, half - 1)
    meant = (codes - zeros[..., None]) * scales.float()[..., None]
    return codes.flatten(1).to(torch.int8), scales, zeros.to(torch.int8), meant.flatten(1)


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] with a sign -> int32 [rows, ceil(n * bits / 32)]: code 0 in the lowest bits of word 0."""
    per_word, count = 32 // bits, codes.shape[1]
    found = torch.zeros(len(codes), -(-count // per_word), dtype=torch.int64)
    for place_in_row in range(count):
        moved = codes[:, place_in_row].long() + (1 << bits - 1)
        found[:, place_in_row // per_word] += moved << bits * (place_in_row % per_word)
    return torch.where(found < 1 << 31, found, found - (1 << 32)).int()


def dense_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The same where codes run on from word to word, as the package packs since 0.18."""
    count = codes.shape[1]
    found = torch.zeros(len(codes), -(-count * bits // 32) * 32, dtype=torch.int64)
    for place_in_row in range(count):
        moved = codes[:, place_in_row].long() + (1 << bits - 1)
        for bit in range(bits):
            found[:, place_in_row * bits + bit] = moved >> bit & 1
    whole = (found.unflatten(1, (-1, 32)) << torch.arange(32)).sum(dim=-1)
    return torch.where(whole < 1 << 31, whole, whole - (1 << 32)).int()


def pack_naive(weight: torch.Tensor, bits: int = 8, group: int = 0, symmetric: bool = True) -> Packed:
    codes, scales, zeros, meant = round_ints(weight, bits, group, symmetric)
    tensors = {"weight": codes, "weight_scale": scales}
    return tensors if symmetric else {**tensors, "weight_zero_point": zeros}, meant


def pack_words(
    weight: torch.Tensor, bits: int = 4, group: int = 32, symmetric: bool = True, words: Words = words
) -> Packed:
    codes, scales, zeros, meant = round_ints(weight, bits, group, symmetric)
    shape = torch.tensor(weight.shape)
    tensors = {"weight_packed": words(codes, bits), "weight_scale": scales, "weight_shape": shape}
    return tensors if symmetric else {**tensors, "weight_zero_point": words(zeros.T, bits).T.contiguous()}, meant


def pack_float(weight: torch.Tensor, rows: int, columns: int) -> Packed:
    """e4m3 with a scale for each block."""
    outputs, inputs = weight.shape
    scales = torch.zeros(-(-outputs // rows), -(-inputs // columns))
    codes, meant = torch.zeros_like(weight).to(torch.float8_e4m3fn), torch.zeros_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            block = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
            scales[row, column] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[row, column]).to(torch.float8_e4m3fn)
            meant[block] = codes[block].float() * scales[row, column]
    return {"weight": codes, "weight_scale": scales}, meant


def pack_tensor(weight: torch.Tensor) -> Packed:
    tensors, meant = pack_float(weight, *weight.shape)
    return {**tensors, "weight_scale": tensors["weight_scale"][0], "input_scale": torch.tensor([0.25])}, meant


def pack_mxfp4(weight: torch.Tensor) -> Packed:
    groups = weight.unflatten(1, (-1, 32))
    exponents = groups.abs().amax(dim=-1).log2().floor() - 2
    codes = (groups / torch.exp2(exponents)[..., None])[..., None].sub(E2M1).abs().argmin(dim=-1)
    meant = (E2M1[codes] * torch.exp2(exponents)[..., None]).flatten(1)
    return {"weight_packed": pairs(codes.flatten(1)), "weight_scale": (exponents + 127).to(torch.uint8)}, meant


def pack_nvfp4(weight: torch.Tensor) -> Packed:
    groups, whole = weight.unflatten(1, (-1, 16)), 448 * 6 / weight.abs().max()
    scales = (groups.abs().amax(dim=-1) / 6 * whole).to(torch.float8_e4m3fn)
    each = (scales.float() / whole)[..., None]
    codes = (groups / each)[..., None].sub(E2M1).abs().argmin(dim=-1)
    tensors = {"weight_packed": pairs(codes.flatten(1)), "weight_scale": scales, "weight_global_scale": whole[None]}
    return tensors, (E2M1[codes] * each).flatten(1)


def pairs(codes: torch.Tensor) -> torch.Tensor:
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)


def pack_mxfp8(weight: torch.Tensor) -> Packed:
    groups = weight.unflatten(1, (-1, 32))
    exponents = groups.abs().amax(dim=-1).log2().floor() - 8
    codes = (groups / torch.exp2(exponents)[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    meant = (codes.float() * torch.exp2(exponents)[..., None]).flatten(1)
    return {"weight": codes.flatten(1), "weight_scale": (exponents + 127).to(torch.uint8)}, meant


FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
BY_TOKEN = TOKENS | {"type": "float"}
CASES: dict[str, tuple[Any, Callable[[torch.Tensor], Packed]]] = {
    "int8": (config("naive-quantized", ints(8)), pack_naive),
    "int8 in groups": (config("int-quantized", ints(8, group=32)), partial(pack_naive, group=32)),
    "int8 asymmetric": (config("naive-quantized", ints(8, symmetric=False)), partial(pack_naive, symmetric=False)),
    "int4 in int8": (config("naive-quantized", ints(4, group=32)), partial(pack_naive, bits=4, group=32)),
    "W4A16": (config("pack-quantized", ints(4, group=32)), pack_words),
    "W4A16 asymmetric": (
        config("pack-quantized", ints(4, group=32, symmetric=False)),
        partial(pack_words, symmetric=False),
    ),
    "W4A16 by output": (
        config("pack-quantized", ints(4, symmetric=False)),
        partial(pack_words, group=0, symmetric=False),
    ),
    "W4A8": (config("pack-quantized", ints(4, group=64), TOKENS), partial(pack_words, group=64)),
    "W8A16": (
        config("pack-quantized", ints(8, group=32, symmetric=False)),
        partial(pack_words, bits=8, symmetric=False),
    ),
    "W3A16": (config("pack-quantized", ints(3, group=32)), partial(pack_words, bits=3, words=dense_words)),
    "W3A16 asymmetric": (
        config("pack-quantized", ints(3, group=32, symmetric=False), version="0.20.1"),
        partial(pack_words, bits=3, symmetric=False, words=dense_words),
    ),
    "W3A16 by output": (
        config("pack-quantized", ints(3, symmetric=False)),
        partial(pack_words, bits=3, group=0, symmetric=False, words=dense_words),
    ),
    "W3A16 before 0.18": (
        config("pack-quantized", ints(3, group=32, symmetric=False), version="0.17.1"),
        partial(pack_words, bits=3, symmetric=False),
    ),
    "W2A16": (config("pack-quantized", ints(2, group=32)), partial(pack_words, bits=2)),
    "W2A16 asymmetric": (
        config("pack-quantized", ints(2, group=32, symmetric=False)),
        partial(pack_words, bits=2, symmetric=False),
    ),
    "int3 in int8": (config("naive-quantized", ints(3, group=32)), partial(pack_naive, bits=3, group=32)),
    "FP8": (config("float-quantized", floats("tensor"), STATIC_FP8), pack_tensor),
    "FP8 by output": (config("float-quantized", floats("channel"), BY_TOKEN), lambda w: pack_float(w, 1, w.shape[1])),
    "FP8 in blocks": (
        config("float-quantized", floats("block", block_structure=[32, 64])),
        partial(pack_float, rows=32, columns=64),
    ),
    "MXFP4": (config("mxfp4-pack-quantized", FP4 | {"strategy": "group", "group_size": 32}), pack_mxfp4),
    "MXFP8": (config("mxfp8-quantized", floats("group", group_size=32, scale_dtype="torch.uint8")), pack_mxfp8),
    "NVFP4": (config("nvfp4-pack-quantized", FP4 | {"strategy": "tensor_group", "group_size": 16}), pack_nvfp4),
}
EACH = pytest.mark.parametrize("case", CASES)


def layer_of(found: Any, parts: list[Tensors], widths: list[int], inputs: int) -> Any:
    return fused_layer(make(found), parts, widths, inputs)


@pytest.mark.row("F-413")
@EACH
def test_decoded_weights_are_what_is_meant(case: str) -> None:
    found, pack = CASES[case]
    widths = [72, 44]  # not full words of zero points, nor full blocks
    packed = [pack(torch.randn(width, 128)) for width in widths]
    weight = layer_of(found, [tensors for tensors, _ in packed], widths, 128).weight()
    assert torch.equal(weight, torch.cat([meant for _, meant in packed]))


@EACH
def test_suite(case: str) -> None:
    found, pack = CASES[case]
    tolerance = {"2": 0.9, "3": 0.5, "4": 0.25}.get(re.sub("[^234]", "", case)[:1], 0.05)
    ranks = (1,) if "before" in case else (1, 2)  # words of ten codes are seldom cut between two
    check_quantizer(lambda: make(found), lambda weight: pack(weight)[0], tolerance=tolerance, ranks=ranks)


@EACH
def test_random_weights(case: str) -> None:
    w = place(quantizer=make(CASES[case][0]))
    column = Column.even(w, ("0", "1"), 128, 64)
    linear: Any = fill_module(column, w, DummySource(w.declaration.slots)).linear
    assert linear.weight().shape == (128, 128)


W8A8 = config("int-quantized", ints(8), TOKENS)


@pytest.mark.row("F-411")
def test_int8_by_token_runs_in_int8() -> None:
    weights = [torch.randn(width, 160) for width in (40, 24)]
    packed = [pack_naive(weight) for weight in weights]
    layer = layer_of(W8A8, [tensors for tensors, _ in packed], [40, 24], 160)
    assert layer.op == "linear.int8"
    assert "group" not in layer.spec().shape, "activations have a scale per token"
    meant = torch.cat([meant for _, meant in packed])
    assert torch.equal(layer.codes * layer.scales[:, None], meant)
    x = torch.randn(5, 160)
    rounded = (x / (x.abs().amax(dim=1, keepdim=True) / 127)).round() * x.abs().amax(dim=1, keepdim=True) / 127
    torch.testing.assert_close(layer(x), rounded @ meant.T)
    check_quantizer(lambda: make(W8A8), lambda weight: pack_naive(weight)[0], tolerance=0.03)


BY_GROUP = TOKENS | {"strategy": "group", "group_size": 128}


def test_int8_by_group_runs_in_int8_by_group() -> None:
    weights = [torch.randn(width, 300) for width in (40, 24)]
    packed = [pack_naive(weight) for weight in weights]
    tensors = [tensors for tensors, _ in packed]
    layer = layer_of(config("int-quantized", ints(8), BY_GROUP), tensors, [40, 24], 300)
    assert (layer.op, layer.spec().shape["group"]) == ("linear.int8", 128)
    x = torch.randn(5, 300)
    wild = x.clone()
    wild[:, 3] *= 1000
    scales = torch.cat(
        [part.abs().amax(dim=1, keepdim=True) / 127 * torch.ones_like(part) for part in wild.split(128, 1)], 1
    )
    rounded = (wild / scales).round() * scales
    torch.testing.assert_close(layer(wild), rounded @ torch.cat([meant for _, meant in packed]).T)
    by_token = layer_of(W8A8, tensors, [40, 24], 300)
    assert not torch.allclose(by_token(wild), layer(wild)), "the outlier costs the whole row"
    check_quantizer(
        lambda: make(config("int-quantized", ints(8), BY_GROUP)), lambda weight: pack_naive(weight)[0], tolerance=0.03
    )


def test_one_scale_for_a_whole_int8_tensor() -> None:
    weight = torch.randn(8, 32)
    scale = weight.abs().max() / 127
    tensors = {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale[None]}
    found = config("int-quantized", {**ints(8), "strategy": "tensor"}, TOKENS)
    layer = layer_of(found, [tensors], [8], 32)
    assert torch.equal(layer.codes * layer.scales[:, None], tensors["weight"] * scale)


def with_order(weight: torch.Tensor, group: int) -> tuple[Tensors, torch.Tensor]:
    """Groups of inputs that lie apart: those with the same g_idx."""
    order = torch.randperm(weight.shape[1])
    groups = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)) // group)
    codes, scales, zeros, meant = round_ints(weight[:, order], 4, group, False)
    back = order.argsort()
    tensors = {
        "weight_packed": words(codes[:, back], 4), "weight_scale": scales, "weight_g_idx": groups.int(),
        "weight_zero_point": words(zeros.T, 4).T.contiguous(),
    }  # fmt: skip
    return tensors, meant[:, back]


ORDERED = config("pack-quantized", ints(4, group=32, symmetric=False, actorder="group"))


def test_groups_of_inputs_that_lie_apart() -> None:
    tensors, meant = with_order(torch.randn(48, 128), 32)
    assert torch.equal(layer_of(ORDERED, [tensors], [48], 128).weight(), meant)
    del tensors["weight_g_idx"]  # then they lie in a row
    plain = layer_of(ORDERED, [tensors], [48], 128)
    assert torch.equal(plain.order, torch.arange(128, dtype=torch.int32))


def test_groups_that_lie_apart_can_not_be_cut() -> None:
    tensors, _ = with_order(torch.randn(8, 128), 32)
    w = place(rank=1, size=2, quantizer=make(ORDERED))
    row = Row(w, "0", 128, 8, reads=(64, 128))
    with pytest.raises(CheckpointError, match=r"0\.weight_g_idx: .* tensor_parallel_size 1"):
        fill_module(row, w, TensorsSource({f"0.{suffix}": tensor for suffix, tensor in tensors.items()}))


def test_the_group_that_names_a_layer_most_exactly() -> None:
    four, eight = ints(4, group=32), ints(8, group=32)
    groups = {
        "group_0": {"targets": ["Linear"], "weights": eight, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*self_attn"], "weights": four, "format": "pack-quantized"},
        "group_2": {"targets": ["a.self_attn.o_proj"], "weights": ints(8), "input_activations": TOKENS},
    }
    groups["group_2"]["format"] = "int-quantized"
    quantizer = make(config("mixed-precision", {}, config_groups=groups, ignore=["lm_head", "re:.*\\.gate$", "b"]))
    w = place(quantizer=quantizer)

    def of(name: str) -> Any:
        return w.linear("column", [Part(name, 64, 0, 64)], 64)

    assert [of(name).codebook.bits for name in ("a.mlp", "a.self_attn.q_proj", "b.mlp")] == [8, 4, 8]
    assert [of(name).format for name in ("a.self_attn.o_proj", "lm_head", "a.gate", "b")] == ["int8", *["plain"] * 3]
    with pytest.raises(CheckpointError, match=r"a\.mlp and a\.self_attn\.q_proj are quantised differently"):
        w.linear("column", [Part("a.mlp", 64, 0, 64), Part("a.self_attn.q_proj", 64, 0, 64)], 64)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (config("sparse-24-bitmask", ints(8)), "format is 'sparse-24-bitmask'; what can be read is 'int-quantized'"),
        (config("marlin-25", ints(4)), "format is 'marlin-25'"),
        (config("mixed-precision", ints(8)), "config_groups.group_0: format is None"),
        (config("pack-quantized", ints(5)), "group_0.weights: num_bits is 5"),
        (config("marlin-24", ints(3)), "num_bits is 3; marlin-24 must have 4 or 8"),
        (config("pack-quantized", ints(4, colour="red")), "weights: colour = 'red' can't be honoured"),
        (config("pack-quantized", floats("channel")), "type is 'float'; packed weights must have 'int'"),
        (config("int-quantized", ints(8), TOKENS | {"symmetric": False}), "symmetric is False; activations of int8"),
        (config("int-quantized", ints(8), TOKENS | {"dynamic": False}), "strategy is 'token'; static activations must"),
        (config("int-quantized", ints(8), TOKENS | {"strategy": "tensor"}), "strategy is 'tensor'"),
        (config("int-quantized", ints(8), TOKENS | {"num_bits": 4}), "bits is 4"),
        (config("int-quantized", ints(8), TOKENS | {"strategy": "group"}), "group_size is None; activations rounded"),
        (config("int-quantized", ints(8), BY_GROUP | {"group_size": 96}), "group_size is 96; activations rounded"),
        (config("int-quantized", ints(8), BY_GROUP | {"dynamic": False}), "strategy is 'group'; static activations"),
        (config("int-quantized", ints(8, group=128), BY_GROUP), "weights: activations rounded by group need symmetric"),
        (config("int-quantized", ints(8, symmetric=False), BY_GROUP), "activations rounded by group need symmetric"),
        (config("int-quantized", ints(4), BY_GROUP), "activations rounded by group need symmetric weights of 8 bits"),
        (config("float-quantized", floats("block")), "strategy 'block' can't be read without the size"),
        (config("int-quantized", ints(8), sparsity_config={"format": "sparse-mask"}), "sparsity_config: format is"),
        (config("int-quantized", ints(8), transform_config={"R1": {}}), "transform_config = {'R1': {}} can't be"),
        (config("int-quantized", ints(8), ignore=["re:["]), "ignore: the pattern '[' is not a regular expression"),
        (config("int-quantized", ints(8), config_groups={}), "config_groups is empty"),
        (config("int-quantized", ints(8), config_groups={"a": 3}), "config_groups.a must be an object"),
    ],
)  # fmt: skip
def test_what_is_refused(found: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        make(found)
    assert problem in caught.value.message


def test_outputs_can_not_be_quantised() -> None:
    found = config("int-quantized", ints(8))
    found["config_groups"]["group_0"]["output_activations"] = TOKENS
    with pytest.raises(CheckpointError, match="output_activations can't be honoured"):
        make(found)


def test_a_cut_inside_a_word_is_refused() -> None:
    w = place(rank=1, size=2, quantizer=make(config("pack-quantized", ints(4))))
    with pytest.raises(ConfigError, match="cover 8 each"):
        Row(w, "o", 24, 8, reads=(12, 24))


def of_layers(pack: Callable[[torch.Tensor], Packed]) -> Callable[[str, torch.Tensor], Packed | None]:
    return lambda name, weight: None if name == "lm_head" else pack(weight)


@pytest.mark.parametrize(("family", "case"), [("qwen2", "W4A16 asymmetric"), ("qwen3_moe", "FP8 in blocks")])
def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path, family: str, case: str) -> None:
    found, pack = CASES[case]
    check_answers(family, tmp_path, found, of_layers(pack))


@pytest.mark.row("F-411")
def test_a_checkpoint_in_int8_answers_like_the_online_format(tmp_path: Path) -> None:
    packed, plain = write_quantised("llama", tmp_path, W8A8, of_layers(pack_naive))
    assert answer(packed) == answer(plain, quantization="int8", quantization_ignore=["lm_head"])


@pytest.mark.row("F-413")
@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_static_fp8_activations_are_rounded_by_the_stored_scale(strategy: str) -> None:
    """As the package runs them in torch: divided, clamped, rounded to e4m3, and multiplied by the scale again."""
    weights = [torch.randn(24, 64), torch.randn(8, 64)]
    rows = (1 << 20) if strategy == "tensor" else 1
    packed = [pack_float(weight, min(rows, len(weight)), 64) for weight in weights]
    tensors = [
        {**found, "weight_scale": found["weight_scale"].reshape(-1, 1)[: 1 if strategy == "tensor" else None, 0]}
        | {"input_scale": torch.tensor([scale])}
        for (found, _), scale in zip(packed, (0.01, 0.02), strict=True)
    ]
    layer = fused_layer(make(config("float-quantized", floats(strategy), STATIC_FP8)), tensors, [24, 8], 64)
    assert layer.op == "linear.coded_static"
    x = torch.randn(5, 64) * 0.01 * torch.logspace(-3, 4, 64)
    rounded = (x / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.02
    torch.testing.assert_close(layer(x), rounded @ torch.cat([meant for _, meant in packed]).T)


def test_static_fp8_activations_have_one_scale_for_all() -> None:
    inputs = STATIC_FP8 | {"strategy": "token"}
    with pytest.raises(CheckpointError, match="strategy is 'token'; static activations must have 'tensor'"):
        make(config("float-quantized", floats("channel"), inputs))


def test_a_wrong_version_does_not_fit() -> None:
    """The two ways to pack three bits differ in how many words they take: one is not read as the other."""
    tensors = pack_words(torch.randn(8, 128), bits=3, words=dense_words)[0]
    with pytest.raises(CheckpointError, match=r"weight_packed has shape \[8, 12\], expected \[8, 13\]"):
        layer_of(config("pack-quantized", ints(3, group=32), version="0.12.2"), [tensors], [8], 128)


def pack_three_bits(name: str, weight: torch.Tensor) -> Packed | None:
    return None if name == "lm_head" else pack_words(weight, bits=3, symmetric=False, words=dense_words)


@pytest.mark.row("F-413")
def test_a_checkpoint_in_three_bits_answers_like_what_it_means(tmp_path: Path) -> None:
    check_answers("llama", tmp_path, config("pack-quantized", ints(3, group=32, symmetric=False)), pack_three_bits)
