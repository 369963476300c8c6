"""Decoder layers whose parts are in several formats, coded weights among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lsv_models.plugin
from lsv.offers import QuantizerOffer
from lsv_cpu import plugin
from lsv_cpu.attention import CpuAttention
from lsv_quant.online import int8, online_coded
from lsv_quant.online.online import Online
from lsv_quant.online.online_coded import OnlineCoded
from lsv_runtime.devices.device import Device
from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, Quantizer, StoredTensor, Unquantised
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, engine_config, run_schedule
from lsv_testing.tiny import tiny


class Ordered(OnlineCoded):
    """The columns in an order of the layer's own: a random model stays one."""

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, Any], like: OnlineCoded) -> None:
        super().__init__(layer, tensors, codebook=replace(like.codebook, ordered=True), round=like.round)

    def hold(self, *tensors: torch.Tensor, **named: torch.Tensor) -> None:
        order = torch.randperm(self.layer.inputs, generator=torch.Generator().manual_seed(1))
        super().hold(*tensors, **{**named, "order": order.int()})


class Mixed:
    """Each part of a layer in a format of its own."""

    name = "mixed"

    def __init__(self, quantization_config: Mapping[str, Any]) -> None:
        self._formats: Mapping[str, Quantizer] = {
            "q_proj": online_coded.make_asym_int4_32({}),
            "gate_proj": online_coded.make_int8_weight_only({}),
            "down_proj": Online("int8", partial(int8.Int8Linear, group=64)),
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-2), ("bfloat16", 8e-2)])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_layer_of_several_formats(family: str, dtype: str, tolerance: float, tmp_path: Path, device: Device) -> None:
    """Biases or norms of heads, residuals, and an operand of another form before every product."""
    catalog = catalog_of(plugin, lsv_models.plugin, Formats)
    config = engine_config(tiny(family, tmp_path), family, dtype=dtype, quantization="mixed")

    def model(*, fused: bool) -> Declared:
        declared = declare(config, catalog)
        lines = bind_ops(declared, catalog, "cpu", not fused)
        assert ("layer", "lsv_cpu.layer:FusedLayer" if fused else "reference") in {
            (line.op, line.implementation) for line in lines
        }
        source = open_source(config, declared, catalog)
        fill(declared, source)
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
