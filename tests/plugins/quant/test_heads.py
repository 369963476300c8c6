"""Output heads with a weight of their own: 8 bits in online formats of 4, plain in fp8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lsv_models.plugin
import lsv_quant.plugin
from lsv.offers import load_object
from lsv_quant.rounding import to_int8
from lsv_runtime.nn.embed import Head
from lsv_runtime.weights.quantizer import Quantizer, WithIgnored
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.quantised import answer
from lsv_testing.tensors import TensorsSource, fill_module, place
from lsv_testing.tiny import tiny

CATALOG = catalog_of(lsv_models.plugin, lsv_quant.plugin)
FOUR_BITS = ("sym_int4", "sym_int4_g64", "asym_int4", "mxfp4", "nf4", "bitsandbytes")


def make(name: str) -> Quantizer:
    (offer,) = (offer for offer in lsv_quant.plugin.lsv_quantizers() if offer.name == name)
    quantizer: Quantizer = load_object(offer.load)({})
    return quantizer


def head_of(quantizer: Quantizer, weight: torch.Tensor, rank: int = 0, size: int = 1) -> Any:
    w = place(quantizer=quantizer, rank=rank, size=size)
    return fill_module(Head(w / "lm_head", *weight.shape), w, TensorsSource({"lm_head.weight": weight})).linear


@pytest.mark.parametrize("name", FOUR_BITS)
def test_a_head_of_its_own_has_eight_bits(name: str) -> None:
    weight = torch.randn(50, 96)
    codes, scales = to_int8(weight)
    head = head_of(make(name), weight)
    assert torch.equal(head.dequantise(), codes * scales[:, None])
    torch.testing.assert_close(head(torch.eye(96)), (codes * scales[:, None]).T)


@pytest.mark.parametrize("vocabulary", [50, 51])
def test_ranks_round_their_rows_as_one_does(vocabulary: int) -> None:
    """Also where they do not share the rows evenly, and the last one's end in zeros."""
    weight = torch.randn(vocabulary, 96)
    parts = [head_of(make("sym_int4"), weight, rank, 2).dequantise() for rank in (0, 1)]
    assert torch.equal(torch.cat(parts)[:vocabulary], head_of(make("sym_int4"), weight).dequantise())


@pytest.mark.parametrize("name", ["sym_int4", "nf4"])
def test_a_head_that_is_ignored_stays_plain(name: str) -> None:
    weight = torch.randn(50, 96)
    assert torch.equal(head_of(WithIgnored(make(name), ["lm_head"]), weight).weight, weight)


@pytest.mark.parametrize("name", ["sym_int4", "mxfp4"])
def test_a_models_layers_have_four_bits_and_its_head_eight(name: str, tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "tiny", tie_word_embeddings=False)
    model: Any = load(engine_config(folder, "llama", quantization=name), CATALOG).model
    assert model.head.linear.codebook.bits == 8
    assert model.layers[0].mlp.down.linear.format == {"sym_int4": "int4", "mxfp4": "coded"}[name]
    found = answer(folder, quantization=name)
    assert found == answer(folder, quantization=name, reference_ops=True)


@pytest.mark.parametrize("name", [*FOUR_BITS, "int8", "int8_weight_only"])
def test_embeddings_that_no_head_shares_have_eight_bits(name: str, tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "tiny", tie_word_embeddings=False)
    model, plain = (untied(folder, quantization) for quantization in (name, None))
    codes, scales = to_int8(plain.embed.weight)
    ids = torch.tensor([7, 0, 21])
    assert torch.equal(model.embed(ids, None), (codes * scales[:, None])[ids])
    assert model.embed.weight.is_meta
    assert model.head.linear is not model.embed.table


@pytest.mark.parametrize("options", [{"quantization": "fp8"}, {"quantization": "experts_int8"}, {}])
def test_other_formats_leave_embeddings_plain(options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny("qwen3_moe", tmp_path / "tiny", tie_word_embeddings=False)
    model: Any = load(engine_config(folder, "qwen3_moe", **options), CATALOG).model
    assert model.embed.table is None
    assert not model.embed.weight.is_meta


def test_embeddings_that_are_ignored_stay_plain(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "tiny", tie_word_embeddings=False)
    kept = untied(folder, "sym_int4", quantization_ignore=("embed_tokens",))
    assert kept.embed.table is None
    assert kept.head.linear.codebook.bits == 8
    kept = untied(folder, "sym_int4", quantization_ignore=("lm_head",))
    assert kept.embed.looks_up
    assert kept.head.linear.format == "plain"


def test_a_tied_head_that_is_ignored_leaves_the_embedding_plain(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "tiny", tie_word_embeddings=True)
    kept = untied(folder, "sym_int4", quantization_ignore=("lm_head",))
    assert not kept.embed.looks_up
    assert kept.head.linear.weight is kept.embed.weight


@pytest.mark.row("F-273")
def test_layers_that_a_qlora_adapter_does_not_target_stay_plain(tmp_path: Path) -> None:
    folder, adapter = tiny("llama", tmp_path / "tiny", tie_word_embeddings=False), tmp_path / "adapter"
    adapter.mkdir()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "target_modules": targets}))
    others = ["mlp", "lm_head", "embed_tokens"]
    found = answer(folder, quantization="bitsandbytes", qlora_adapter_name_or_path=str(adapter))
    assert found == answer(folder, quantization="bitsandbytes", quantization_ignore=others)
    assert found != answer(folder, quantization="bitsandbytes")


def untied(folder: Path, quantization: str | None, **options: Any) -> Any:
    return load(engine_config(folder, "llama", quantization=quantization, **options), CATALOG).model
