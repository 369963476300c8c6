"""A GGUF file as a checkpoint source: quantised layers as ``codes``, ``scales`` and ``offsets``, everything else as
numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from lsv.errors import CheckpointError
from lsv.weights.checkpoint import TensorInfo
from lsv_quant.gguf.blocks import PLAIN, decode, read_codes, read_offsets, read_scales
from lsv_quant.gguf.file import GgufFile, read_gguf
from lsv_quant.gguf.layout import Place, forms, places
from lsv_quant.recognise import POINTER

_READS = {"codes": read_codes, "scales": read_scales, "offsets": read_offsets}


class GgufSource:
    """Tensors of ``file`` by the names of lsv's models. Blocks are decoded as they are read."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self._places = file, places(file)
        self._forms = forms(file, self._places)
        self._views: dict[str, tuple[str, str]] = {}
        self._infos: dict[str, TensorInfo] = {}
        for name in self._places:
            self._describe(name)
        self._descriptors = {path: os.open(path, os.O_RDONLY) for path in {t.file for t in file.tensors.values()}}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        stored, view = self._views[name]
        place = self._places[stored]
        tensor = self.file.tensors[place.tensor]
        if len(tensor.shape) == 1:
            vector = decode(self._stored_rows(place.tensor, 0, 1), tensor.type)[0]
            return _in_halves(vector, place.heads)[first:last]
        data = self._rows(place, first, last)
        if view == "numbers":
            return decode(data, tensor.type)
        return _READS[view](data, tensor.type, self._forms[stored.removesuffix(".weight")])

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _describe(self, name: str) -> None:
        place, layer = self._places[name], name.removesuffix(".weight")
        tensor = self.file.tensors[place.tensor]
        shape = tensor.shape if place.expert is None else tensor.shape[1:]
        form = self._forms.get(layer)
        if form is None:
            self._views[name] = (name, "numbers")
            self._infos[name] = TensorInfo(shape, PLAIN.get(tensor.type, torch.float32))
            return
        outputs, inputs = shape
        self._infos[f"{layer}.codes"] = TensorInfo((outputs, inputs * form.bits // 8), torch.uint8)
        groups = TensorInfo((outputs, inputs // form.group), torch.float32)
        self._infos |= {f"{layer}.scales": groups} | ({f"{layer}.offsets": groups} if form.offsets else {})
        self._views |= {f"{layer}.{view}": (name, view) for view in _READS}

    def _rows(self, place: Place, first: int, last: int) -> torch.Tensor:
        """Bytes of a matrix's rows [first, last): uint8 [rows, row bytes]."""
        outputs = self.file.tensors[place.tensor].shape[-2]
        if not place.heads:
            shift = (place.expert or 0) * outputs
            return self._stored_rows(place.tensor, first + shift, last + shift)
        size = outputs // place.heads
        begin, end = first // size * size, -(-last // size) * size
        heads = self._stored_rows(place.tensor, begin, end)
        return _in_halves(heads, len(heads) // size)[first - begin : last - begin]

    def _stored_rows(self, name: str, first: int, last: int) -> torch.Tensor:
        tensor = self.file.tensors[name]
        data = torch.empty((last - first, tensor.row_bytes), dtype=torch.uint8)
        room, offset = memoryview(data.numpy()).cast("B"), tensor.offset + first * tensor.row_bytes  # type: ignore[arg-type]
        while room.nbytes:
            count = os.preadv(self._descriptors[tensor.file], [room], offset)
            if count == 0:
                raise CheckpointError(f"{tensor.file} became shorter while it was being read")
            room, offset = room[count:], offset + count
        return data


def _in_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows [N, ...] of interleaved heads: first the first of each pair, then the second."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2) if heads else rows


def open_source(path: str) -> GgufSource:
    """The source of a folder that ``prepare`` made."""
    pointer = json.loads((Path(path) / POINTER).read_text(encoding="utf-8"))
    return GgufSource(read_gguf(Path(pointer["file"])))
