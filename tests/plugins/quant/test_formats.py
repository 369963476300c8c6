"""Every format: the conformance suite, its error, what it holds, and the demo model in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import lsv_demo.plugin
import lsv_quant.plugin
from lsv.offers import QuantizerOffer, load_object
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.quantizer import Quantizer
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.catalog import catalog_of
from lsv_testing.model import Sequences, engine_config, load
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

DEMO = Path(lsv_demo.__file__).parent / "checkpoint"
ERROR = {
    "int8": 0.015, "sym_int4": 0.11, "sym_int4_g32": 0.11, "sym_int4_g64": 0.12, "sym_int4_g128": 0.13,
    "int8_weight_only": 0.012, "asym_int4_g32": 0.09, "asym_int4": 0.1, "asym_int4_g128": 0.105,
    "mxfp4": 0.125, "nf4": 0.105, "bitsandbytes": 0.105, "fp8": 0.03, "fp8_tensor": 0.03,
}  # fmt: skip
"""The largest error of a layer of Gaussian weights and inputs, by root mean square."""
BYTES = {
    "int8": 1.01, "sym_int4": 0.63, "sym_int4_g32": 0.63, "sym_int4_g64": 0.57, "sym_int4_g128": 0.54,
    "int8_weight_only": 1.01, "asym_int4_g32": 0.75, "asym_int4": 0.63, "asym_int4_g128": 0.57,
    "mxfp4": 0.63, "nf4": 0.57, "bitsandbytes": 0.57, "fp8": 1.01, "fp8_tensor": 1.01,
}  # fmt: skip
"""What a weight may take."""
FORMATS = pytest.mark.parametrize("name", ERROR)


def make(name: str) -> Quantizer:
    (offer,) = (offer for offer in lsv_quant.plugin.lsv_quantizers() if offer.name == name)
    quantizer: Quantizer = load_object(offer.load)({})
    return quantizer


def layer_of(name: str, weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> Any:
    w = place(quantizer=make(name), dtype=dtype)
    column = Column.even(w, ("0",), weight.shape[1], weight.shape[0])
    return fill_module(column, w, TensorsSource({"0.weight": weight})).linear


def test_every_offer_is_covered() -> None:
    offers: list[QuantizerOffer] = list(lsv_quant.plugin.lsv_quantizers())
    assert {offer.name for offer in offers if offer.online and not offer.experts} == set(ERROR)
    assert all(make(name).name == name for name in ERROR)


@FORMATS
def test_suite(name: str) -> None:
    check_quantizer(lambda: make(name), lambda weight: {"weight": weight}, tolerance=1.5 * ERROR[name])


@FORMATS
@pytest.mark.parametrize("inputs", [512, 200])
def test_error(name: str, inputs: int) -> None:
    weight, x = torch.randn(96, inputs), torch.randn(40, inputs)
    exact = x @ weight.T
    found = layer_of(name, weight)(x)
    assert float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt()) < ERROR[name]


@pytest.mark.parametrize("name", ["int8", "sym_int4_g32", "sym_int4_g64", "sym_int4_g128"])
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    layer, x = layer_of(name, torch.randn(48, 160)), torch.randn(2, 7, 160)
    whole = layer(x)
    assert torch.equal(layer(x[1, 3:4])[0], whole[1, 3])
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_int8_keeps_outliers_of_activations_to_their_group() -> None:
    weight, x = torch.randn(48, 300), torch.randn(7, 300)
    weight[:, :128] = 0
    wild = x.clone()
    wild[:, 3] = 1000
    layer = layer_of("int8", weight)
    assert torch.equal(layer(wild), layer(x))
    assert layer.scales.shape == (48,), "weights have one scale per output"
    assert layer.spec().shape["group"] == 128
    assert "group" not in layer_of("int8", torch.randn(48, 128)).spec().shape, "one group is a whole row"


@pytest.mark.row("F-937")
@FORMATS
def test_the_plain_weight_is_not_kept(name: str) -> None:
    layer = layer_of(name, torch.randn(128, 1024), torch.bfloat16)
    held = [tensor for tensor in (*layer.parameters(), *layer.buffers()) if not tensor.is_meta]
    table = 1024  # bytes, of what codes mean: once a layer, however large
    assert sum(tensor.nbytes for tensor in held) <= BYTES[name] * 128 * 1024 + table


@pytest.mark.parametrize("name", ["int8", "sym_int4"])
def test_released_buffers_can_be_filled_again(name: str) -> None:
    w = place(quantizer=make(name))
    column = Column.even(w, ("0",), 64, 32)
    layer: Any = column.linear
    filler = Filler(column, w.declaration.slots)
    source, x = TensorsSource({"0.weight": torch.randn(32, 64)}), torch.randn(3, 64)
    filler.fill(source, w.device)
    before, buffer = layer(x), "codes" if name == "int8" else "nibbles"
    assert not layer.release(buffer).is_meta
    assert layer.get_buffer(buffer).is_meta
    filler.fill(source, w.device)
    assert torch.equal(layer(x), before)


@pytest.mark.row("F-1020", "F-406", "F-414")
@FORMATS
def test_the_demo_model_answers(name: str) -> None:
    declared = demo(name)
    assert (declared.model.head.linear.format == "plain") == name.startswith("fp8")
    assert declared.model.embed.looks_up != name.startswith("fp8")
    assert ask(declared, "Where does Mira live?") == "Mira lives in Lorn."
    assert ask(declared, "What is the capital of France?") == "The capital of France is Paris."


def demo(name: str) -> Declared:
    config = engine_config(DEMO, "lsv-demo", dtype="bfloat16", quantization=name)
    return load(config, catalog_of(lsv_demo.plugin, lsv_quant.plugin))


def ask(declared: Declared, question: str) -> str:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    messages = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    sequences, answer = Sequences(declared), []
    while len(answer) < 30:
        sequences.add(0, ids)
        (logits,) = sequences.step([(0, len(ids))])
        ids = [int(logits[-1].argmax())]
        if ids[0] == tokenizer.eos_token_id:
            break
        answer += ids
    return str(tokenizer.decode(answer, skip_special_tokens=True)).strip()
