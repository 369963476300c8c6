"""Marlin's layouts: codes laid code by code as its kernels read them, turned back, refused, and answering."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.compressed_tensors import make as make_compressed
from lsv_quant.checkpoints.gptq import make as make_gptq
from lsv_quant.checkpoints.marlin_source import MarlinSource
from lsv_quant.recognise import is_marlin, is_sparse
from lsv_testing.quantised import answer, write_quantised
from lsv_testing.tensors import TensorsSource

Tensors = dict[str, torch.Tensor]
WORD_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3, 4, 6, 5, 7)}
"""Of a thread's eight codes in a tile, the one in each place of its words."""


def quantise(weight: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [outputs, inputs] from 0, float16 scales [outputs, groups], and what they mean."""
    groups, half = weight.unflatten(1, (-1, group)), 1 << bits - 1
    scales = (groups.abs().amax(dim=-1) / (half - 1)).half()
    codes = (groups / scales.float()[..., None]).round()
    return (codes + half).flatten(1).long(), scales, (codes * scales.float()[..., None]).flatten(1)


def lay(codes: torch.Tensor, bits: int, *, sparse: bool) -> torch.Tensor:
    """Codes [inputs, outputs] as words [inputs / 16, outputs * 16 * bits / 32]."""
    inputs, outputs = codes.shape
    per_word = 32 // bits
    words = torch.zeros(inputs // 16, outputs * 16 // per_word, dtype=torch.int64)
    for row in range(inputs // 16):
        for block in range(outputs // 64):
            for thread in range(32):
                for number in range(4):
                    for place in range(8):
                        own = WORD_ORDER[bits][place]
                        pair, second = thread % 4 * 2, own // 4
                        step = (pair, pair + 1, pair + 8, pair + 9)[own % 4]
                        column = thread // 4
                        if sparse:
                            output = 16 * (column // 2) + 8 * (column % 2) + 4 * second + number
                        else:
                            output = 16 * number + column + 8 * second
                        at = block * 1024 + thread * 32 + number * 8 + place
                        code = int(codes[16 * row + step, 64 * block + output])
                        words[row, at // per_word] += code << bits * (at % per_word)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).int()


def lay_scales(scales: torch.Tensor, *, sparse: bool) -> torch.Tensor:
    """[groups, outputs]"""
    laid = torch.empty_like(scales)
    for output in range(scales.shape[1]):
        if len(scales) == 1:
            inside = output % 32
            source = inside // 8 * 2 + (0, 1, 8, 9, 16, 17, 24, 25)[inside % 8]
            laid[:, output] = scales[:, output if sparse else output // 32 * 32 + source]
        else:
            inside = output % 64
            source = inside // 8 * 8 + (0, 4, 1, 5, 2, 6, 3, 7)[inside % 8] if sparse else inside % 8 * 8 + inside // 8
            laid[:, output] = scales[:, output // 64 * 64 + source]
    return laid


def keep_two(codes: torch.Tensor, middle: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [outputs, inputs], two of four not the middle -> those [outputs, inputs / 2] and the marks of a layer."""
    outputs, inputs = codes.shape
    kept, marks = torch.zeros(outputs, inputs // 2, dtype=torch.int64), torch.zeros(outputs, inputs // 16).long()
    laid = torch.zeros(inputs // 32 * outputs * 2, dtype=torch.int64)
    for output in range(outputs):
        for four in range(inputs // 4):
            found = [place for place in range(4) if codes[output, 4 * four + place] != middle]
            first, second = [*found, *(place for place in (3, 2) if place not in found)][:2]
            first, second = sorted((first, second))
            kept[output, 2 * four], kept[output, 2 * four + 1] = codes[output, [4 * four + first, 4 * four + second]]
            marks[output, four // 4] += (first | second << 2) << 4 * (four % 4)
        for column in range(inputs // 16):
            row = output // 64 * 64 + output % 2 * 2 + output % 8 // 4 + output % 4 // 2 * 32 + output % 64 // 8 * 4
            upper, lower = row % 2 == 0 and column % 2 == 1, row % 2 == 1 and column % 2 == 0
            row, at = row + upper - lower, column - upper + lower
            laid[at // 2 * outputs * 2 + row * 2 + at % 2] = marks[output, column]
    laid = torch.where(laid < 1 << 15, laid, laid - (1 << 16)).short()
    return kept, laid.reshape(inputs // 32, 2 * outputs)


def prune(weight: torch.Tensor) -> torch.Tensor:
    fours = weight.unflatten(1, (-1, 4))
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, fours.abs().topk(2).indices, True)
    return torch.where(kept, fours, 0.0).flatten(1)


def pack(weight: torch.Tensor, bits: int, group: int) -> tuple[Tensors, torch.Tensor]:
    codes, scales, meant = quantise(weight, bits, group or weight.shape[1])
    return {"B": lay(codes.T, bits, sparse=False), "s": lay_scales(scales.T, sparse=False),
            "workspace": torch.zeros(16, dtype=torch.int32)}, meant  # fmt: skip


def pack_sparse(weight: torch.Tensor, bits: int, group: int) -> tuple[Tensors, torch.Tensor]:
    codes, scales, meant = quantise(prune(weight), bits, group or weight.shape[1])
    kept, marks = keep_two(codes, 1 << bits - 1)
    return {"B_24": lay(kept.T, bits, sparse=True), "B_meta": marks, "s": lay_scales(scales.T, sparse=True)}, meant


def renamed(tensors: Tensors) -> Tensors:
    """As compressed-tensors calls them."""
    names = {"B_24": "weight_packed", "B_meta": "meta", "s": "scale_packed"}
    return {names[name]: tensor for name, tensor in tensors.items()}


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """GPTQ's words [inputs / n, outputs] -> codes [inputs, outputs]."""
    places = range(0, 32, bits)
    return torch.stack([words.long() >> place & (1 << bits) - 1 for place in places], dim=1).flatten(0, 1)


@pytest.mark.row("F-410")
@pytest.mark.parametrize(("bits", "sparse"), [(4, False), (4, True), (8, True)])
@pytest.mark.parametrize("group", [0, 32])
def test_weights_are_what_was_packed(bits: int, sparse: bool, group: int) -> None:
    weight = torch.randn(128, 96)
    tensors, meant = (pack_sparse if sparse else pack)(weight, bits, group)
    found = MarlinSource(
        TensorsSource({f"a.{name}": tensor for name, tensor in tensors.items()} | {"b": torch.ones(2)})
    )
    rows = 96 * bits // 32
    assert {name: info.shape for name, info in found.tensors().items()} == {
        "a.qweight": (rows, 128), "a.scales": (96 // (group or 96), 128), "b": (2,),
    }  # fmt: skip
    codes = unpack(found.read("a.qweight", 0, rows), bits).T - (1 << bits - 1)
    scales = found.read("a.scales", 0, 96 // (group or 96)).T.float()
    assert torch.equal((codes.unflatten(1, (-1, group or 96)) * scales[..., None]).flatten(1), meant)
    whole = found.read("a.qweight", 0, rows)
    for first, last in ((1, 2), (3, rows), (5, 9)):  # not whole tiles
        assert torch.equal(found.read("a.qweight", first, last), whole[first:last])
    assert torch.equal(found.read("b", 0, 2), torch.ones(2))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"a.B": torch.zeros(4, 100, dtype=torch.int32)}, r"\[4, 100\] words are no tiles of 4 or 8 bits for 64"),
        ({"a.B": torch.zeros(4, 128)}, "a.B must be int32"),
        ({"a.B_meta": torch.zeros(4, 64, dtype=torch.int16)}, r"a.B_meta must be int16 \[4, 128\]"),
    ],
)
def test_tensors_that_contradict_one_another(change: Tensors, problem: str) -> None:
    codes = "a.B_24" if "a.B_meta" in change else "a.B"
    with pytest.raises(CheckpointError, match=problem):
        MarlinSource(
            TensorsSource({codes: torch.zeros(4, 128, dtype=torch.int32), "a.s": torch.zeros(1, 64), **change})
        )


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
GROUP = {"targets": ["Linear"], "input_activations": None, "output_activations": None}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "marlin-24", "ignore": ["lm_head"],
    "sparsity_config": {"format": "dense", "sparsity_structure": "2:4"},
    "config_groups": {"a": GROUP | {"weights": WEIGHTS}},
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GPTQ | {"checkpoint_format": "marlin"}, marks=pytest.mark.row("F-410")),
        pytest.param(COMPRESSED, marks=pytest.mark.row("F-413")),
    ],
)
def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path, config: dict[str, Any]) -> None:
    def packed(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if name == "lm_head":
            return None
        if config is not COMPRESSED:
            return pack(weight, 4, 32)
        tensors, meant = pack_sparse(weight, 4, 32)
        return renamed(tensors), meant

    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32,
             "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    found, plain = write_quantised("llama", tmp_path, config, packed, **shape)
    assert is_marlin(str(found))
    assert not is_sparse(str(found))
    assert answer(found, reference_ops=True) == answer(plain, reference_ops=True)


def test_where_a_checkpoint_says_so(tmp_path: Path) -> None:
    assert not is_marlin(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    for found in ({"checkpoint_format": "marlin_24"}, {"is_marlin_format": True}, {"format": "gptq"}):
        (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, **found}))
        assert is_marlin(str(tmp_path)) == ("format" not in found)
    (tmp_path / "config.json").write_text('{"quantization_config": {"format": "pack-quantized"}}')
    (tmp_path / "quantize_config.json").write_text('{"checkpoint_format": "marlin"}')
    assert not is_marlin(str(tmp_path)), "config.json has the last word"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint_format": "marlin", "bits": 8}, "bits is 8; what can be read is 4"),
        ({"checkpoint_format": "marlin_24", "sym": False}, "sym is False; what can be read is True"),
        ({"is_marlin_format": True, "desc_act": True}, "desc_act is True; what can be read is False"),
    ],
)
def test_what_the_layout_does_not_have(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make_gptq({**GPTQ, **change})
    with pytest.raises(CheckpointError, match="symmetric is False; marlin-24 must have True"):
        make_compressed(COMPRESSED | {"config_groups": {"a": GROUP | {"weights": WEIGHTS | {"symmetric": False}}}})
