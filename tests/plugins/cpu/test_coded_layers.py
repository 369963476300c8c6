"""Layers of coded weights as models hold them: bound through the op table, filled again, and beside other formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lsv_models.plugin
from lsv.nn import build
from lsv.nn.checkpoint import DummySource
from lsv.nn.fill import Filler
from lsv.nn.linear import Column
from lsv.nn.mlp import GatedMLP
from lsv.offers import QuantizerOffer, load_object
from lsv.ops import bind
from lsv.platform import Device
from lsv.quantizer import WEIGHT, Linear, LinearLayer, Quantizer, StoredTensor, Unquantised
from lsv.testing.catalog import catalog_of
from lsv.testing.model import SCHEDULES, Sequences, engine_config, run_schedule
from lsv.testing.ops import check_rows
from lsv.testing.tensors import fill_module, place
from lsv.testing.tiny import tiny
from lsv_cpu import plugin
from lsv_cpu.attention import CpuAttention
from lsv_quant import int8, online_coded
from lsv_quant.online_coded import OnlineCoded

QUANTIZERS = {
    "offsets": online_coded.make_asym_int4_32,
    "4 bits": online_coded.make_nf4,
    "8 bits": online_coded.make_int8_weight_only,
}
FORMATS = pytest.mark.parametrize("name", QUANTIZERS)


class Ordered(OnlineCoded):
    """The columns in an order of the layer's own: a random model stays one."""

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, Any], like: OnlineCoded) -> None:
        super().__init__(layer, tensors, coding=replace(like.coding, ordered=True), round=like.round)

    def hold(self, *tensors: torch.Tensor, **named: torch.Tensor) -> None:
        order = torch.randperm(self.layer.inputs, generator=torch.Generator().manual_seed(1))
        super().hold(*tensors, **{**named, "order": order.int()})


class Mixed:
    """Each part of a layer in a format of its own."""

    name = "mixed"

    def __init__(self, quantization_config: Mapping[str, Any]) -> None:
        self._formats: Mapping[str, Quantizer] = {
            "q_proj": QUANTIZERS["offsets"]({}),
            "gate_proj": QUANTIZERS["8 bits"]({}),
            "down_proj": int8.make({}),
        }

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, Any]) -> Linear:
        part = (layer.parts or (layer.name,))[0].rpartition(".")[2]
        built = self._formats.get(part, Unquantised()).build(layer, tensors)
        return Ordered(layer, tensors, built) if isinstance(built, OnlineCoded) and part == "q_proj" else built


class Formats:
    """A plugin with that one."""

    @staticmethod
    def lsv_quantizers() -> Iterable[QuantizerOffer]:
        yield QuantizerOffer("mixed", f"{__name__}:Mixed", online=True)


def bound(name: str, make: Any, dtype: torch.dtype) -> tuple[Any, Any, Filler]:
    """A module as the cpu platform runs it and as plain torch does, with the same weights."""
    w, plain = place(dtype=dtype, quantizer=QUANTIZERS[name]({})), place(dtype=dtype, quantizer=QUANTIZERS[name]({}))
    module, reference = make(w), make(plain)
    fill_module(reference, plain, DummySource(plain.declaration.slots))
    lines = bind(module, tuple(plugin.lsv_kernels()), "cpu", lambda offer: load_object(offer.load))
    assert any("PanelLinear" in line.implementation or "PanelMLP" in line.implementation for line in lines), lines
    filler = Filler(module, w.declaration.slots)
    filler.fill(DummySource(w.declaration.slots), w.device)
    return module, reference, filler


@FORMATS
def test_linear(name: str, device: Device) -> None:
    module, reference, _ = bound(name, lambda w: Column.even(w, ("q", "k"), 200, 50, bias=True), torch.float32)
    for rows in (1, 3, 40):
        x = torch.randn(rows, 200)
        torch.testing.assert_close(module(x), reference(x), rtol=1e-5, atol=2e-5 * float(reference(x).abs().max()))
    check_rows(module.linear, (torch.randn(20, 200),))


@FORMATS
def test_gated_mlp(name: str, device: Device) -> None:
    module, reference, _ = bound(name, lambda w: GatedMLP(w, 128, 192, "silu"), torch.bfloat16)
    x = torch.randn(9, 128).bfloat16()
    found, wanted = module(x).float(), reference(x).float()
    assert (found - wanted).abs().max() <= 0.03 * wanted.abs().max()  # the gate is not rounded before the product
    check_rows(module, (x,))


@FORMATS
def test_filling_again_writes_to_the_same_storage(name: str, device: Device) -> None:
    module, _, filler = bound(name, lambda w: Column.even(w, ("q",), 128, 64), torch.bfloat16)
    x = torch.randn(2, 128).bfloat16()
    before, packed = module(x), module.linear.packed.data_ptr()
    filler.fill(DummySource(filler.slots), torch.device("cpu"))
    assert module.linear.packed.data_ptr() == packed
    assert torch.equal(module(x), before)
    held = [tensor for tensor in (*module.parameters(), *module.buffers()) if not tensor.is_meta]
    assert sum(tensor.nbytes for tensor in held) < 128 * 64 * 1.1


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-2), ("bfloat16", 8e-2)])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_layer_of_several_formats(family: str, dtype: str, tolerance: float, tmp_path: Path, device: Device) -> None:
    """Biases or norms of heads, residuals, and an operand of another form before every product."""
    catalog = catalog_of(plugin, lsv_models.plugin, Formats)
    config = engine_config(tiny(family, tmp_path), family, dtype=dtype, quantization="mixed")

    def model(*, fused: bool) -> build.Declared:
        declared = build.declare(config, catalog)
        lines = build.bind(declared, catalog, "cpu", not fused)
        assert ("layer", "lsv_cpu.layer:FusedLayer" if fused else "reference") in {
            (line.op, line.implementation) for line in lines
        }
        source = build.open_source(config, declared, catalog)
        build.fill(declared, source)
        source.close()
        return declared

    declared = model(fused=True)
    make = partial(Sequences, declared, CpuAttention(), block_size=16)
    found = run_schedule(make(), SCHEDULES["mixed"])
    plain = run_schedule(Sequences(model(fused=False)), SCHEDULES["whole"])
    largest = max(float(logits.abs().max()) for logits in plain.values())
    for sequence, logits in plain.items():
        assert float((found[sequence] - logits).abs().max()) <= tolerance * largest
    whole = run_schedule(make(), SCHEDULES["whole"])
    assert all(torch.equal(found[sequence], logits) for sequence, logits in whole.items())
