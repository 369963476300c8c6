"""bitsandbytes stores 4-bit weights and their scales as one long row; here they become matrices, which can be sharded.

For ``<layer>.weight`` [N, K] it stores (``QuantState.as_dict(packed=True)``): two codes in a byte [N * K / 2, 1]; under
``weight.absmax`` a scale for each block of a row's weights; under ``weight.quant_map`` the 16 values; under
``weight.quant_state.bitsandbytes__<kind>`` JSON. Scales may be quantised to uint8 themselves: a scale is then
``nested_quant_map[absmax] * nested_absmax + nested_offset``, with one ``nested_absmax`` for every 256 scales.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.bitsandbytes import BLOCK
from lsv_quant.tables import EXACT_NF4, FP4
from lsv_runtime.weights.checkpoint import CheckpointSource, SafetensorsSource, TensorInfo

_STATE = ".quant_state.bitsandbytes__"
_TABLES = {"nf4": EXACT_NF4, "fp4": tuple(value / 12 for value in FP4)}
_FORMAT = ".weight_format"


@dataclass(frozen=True, slots=True)
class _Packed:
    """A packed weight: ``block`` weights share a scale, and ``nested`` scales share one of their own (0: none do)."""

    kind: str
    outputs: int
    inputs: int
    block: int
    nested: int
    offset: float


class BitsandbytesSource:
    """Packed weights as ``weight`` uint8 [N, K / 2] and ``nf4_scales`` or ``fp4_scales`` float32 [N, K / 64];
    everything else in ``source`` unchanged.

    Raises ``CheckpointError`` for a packed weight that contradicts its own state.
    """

    def __init__(self, source: CheckpointSource) -> None:
        self.source = source
        self._packed = {name.partition(_STATE)[0]: self._parse(name) for name in source.tensors() if _STATE in name}
        self._scales = {f"{name.removesuffix('weight')}{w.kind}_scales": name for name, w in self._packed.items()}
        self._infos = dict(self._describe())

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        if name in self._scales:
            return self._read_scales(self._scales[name], first, last)
        if name not in self._packed:
            return self.source.read(name, first, last)
        width = self._packed[name].inputs // 2
        return self.source.read(name, first * width, last * width).reshape(-1, width)

    def close(self) -> None:
        self.source.close()

    def _describe(self) -> Mapping[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for name, info in self.source.tensors().items():
            if name.endswith(_FORMAT):
                self._check_layout(name)
            elif self._packed.keys().isdisjoint(_prefixes(name)):
                found[name] = info
        for name, packed in self._packed.items():
            found[name] = TensorInfo((packed.outputs, packed.inputs // 2), torch.uint8)
        for name, weight in self._scales.items():
            packed = self._packed[weight]
            found[name] = TensorInfo((packed.outputs, packed.inputs // BLOCK), torch.float32)
        return found

    def _read_scales(self, weight: str, first: int, last: int) -> torch.Tensor:
        packed = self._packed[weight]
        row = packed.inputs // packed.block
        begin, end = first * row, last * row
        scales = self.source.read(f"{weight}.absmax", begin, end).clone()
        if packed.nested:
            start = begin // packed.nested
            outer = self.source.read(f"{weight}.nested_absmax", start, -(-end // packed.nested))
            shared = outer[torch.arange(begin, end) // packed.nested - start]
            scales = self._whole(f"{weight}.nested_quant_map")[scales.int()] * shared + packed.offset
        return scales.reshape(-1, row).repeat_interleave(packed.block // BLOCK, dim=1)

    def _parse(self, name: str) -> _Packed:
        weight, _, kind = name.partition(_STATE)
        try:
            state = json.loads(self._whole(name).numpy().tobytes())
            (outputs, inputs), block = state["shape"], state["blocksize"]
            nested = state["nested_blocksize"] if f"{weight}.nested_absmax" in self.source.tensors() else 0
            packed = _Packed(kind, outputs, inputs, block, nested, float(state.get("nested_offset", 0.0)))
        except (ValueError, KeyError, TypeError) as cause:
            raise CheckpointError(f"{name} is not the state of a packed matrix: {cause!r}") from cause
        self._check(weight, packed)
        return packed

    def _check(self, weight: str, packed: _Packed) -> None:
        if packed.kind not in _TABLES:
            raise CheckpointError(f"{weight} is packed as {packed.kind}; what can be read is {', '.join(_TABLES)}")
        if packed.block < BLOCK or packed.block % BLOCK or packed.inputs % packed.block:
            raise CheckpointError(
                f"{weight} has {packed.inputs} inputs in blocks of {packed.block}: a block must be a multiple of "
                f"{BLOCK} and lie within one row"
            )
        scales = packed.outputs * packed.inputs // packed.block
        wanted: dict[str, tuple[tuple[int, ...], Any]] = {
            weight: ((packed.outputs * packed.inputs // 2, 1), torch.uint8),
            f"{weight}.absmax": ((scales,), torch.uint8 if packed.nested else torch.float32),
            f"{weight}.quant_map": ((16,), torch.float32),
        }
        if packed.nested:
            wanted[f"{weight}.nested_absmax"] = ((-(-scales // packed.nested),), torch.float32)
            wanted[f"{weight}.nested_quant_map"] = ((256,), torch.float32)
        for name, (shape, dtype) in wanted.items():
            found = self.source.tensors().get(name)
            if found != TensorInfo(shape, dtype):
                raise CheckpointError(f"{name} must be {dtype} {list(shape)}, found {found or 'none'}")
        values = self._whole(f"{weight}.quant_map")
        if not torch.allclose(values, torch.tensor(_TABLES[packed.kind]), rtol=1e-4, atol=1e-4):
            raise CheckpointError(f"{weight}.quant_map has other values than {packed.kind}: {values.tolist()}")

    def _check_layout(self, name: str) -> None:
        if int(self._whole(name).flatten()[0]):
            raise CheckpointError(f"{name} is not 0: the weights are not stored row by row; save the checkpoint anew")

    def _whole(self, name: str) -> torch.Tensor:
        shape = self.source.tensors()[name].shape
        return self.source.read(name, 0, shape[0] if shape else 1)


def _prefixes(name: str) -> set[str]:
    """What precedes each dot of a name."""
    return {name[:place] for place, letter in enumerate(name) if letter == "."}


def open_source(path: str) -> BitsandbytesSource:
    return BitsandbytesSource(SafetensorsSource(Path(path)))
