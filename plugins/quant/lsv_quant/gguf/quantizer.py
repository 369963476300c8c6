"""The layers of a GGUF file, each in the form of its type. Activations are not quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import CodedFormat, Held
from lsv_quant.gguf.blocks import TABLES
from lsv_quant.gguf.types import Form
from lsv_quant.tables import BYTES, COUNTS, NIBBLES
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import LinearLayer, PerLayer, Quantizer, StoredTensor, Unquantised, per_part


class GgufWeights(PerLayer):
    """``forms`` by a layer's full name; layers without one are plain."""

    name = "gguf"

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = forms

    def table(self, layer: LinearLayer) -> Quantizer | None:
        return self.choose(layer) if layer.name in self._forms else None

    def choose(self, layer: LinearLayer) -> Quantizer:
        form = per_part(layer, lambda names: self._forms.get(names[0]))
        if form is None:
            return Unquantised()
        codes = StoredTensor("codes", torch.uint8, output_axis=0, input_axis=1, per_input=8 // form.bits)
        scales, offsets = (
            StoredTensor(name, torch.float32, output_axis=0, input_axis=1, per_input=form.group)
            for name in ("scales", "offsets")
        )
        tensors = (codes, scales, offsets) if form.offsets else (codes, scales)
        return CodedFormat(self.name, Codebook(_table(form), form.group, form.offsets), tensors, _as_stored)


def _table(form: Form) -> tuple[float, ...]:
    if form.table:
        return tuple(map(float, TABLES[form.table]))
    return BYTES if form.bits == 8 else COUNTS if form.offsets else NIBBLES


def _as_stored(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
    return Held(stored["codes"], stored["scales"], stored.get("offsets"))


def make(quantization_config: Mapping[str, Any]) -> GgufWeights:
    """``layers`` maps names to forms as ``prepare`` writes them: [bits, group, offsets, table]."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("gguf",))
    scheme.pass_over("layers")
    scheme.finish()
    return GgufWeights({name: Form(*form) for name, form in quantization_config.get("layers", {}).items()})
