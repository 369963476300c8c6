"""A GGUF file as a checkpoint source: quantised layers as ``codes``, ``scales`` and ``offsets``, everything else as
numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import WEIGHTS, open_regular, read_text
from lsv_quant.gguf.blocks import PLAIN, decode, read_codes, read_offsets, read_scales
from lsv_quant.gguf.file import GgufFile, read_gguf
from lsv_quant.gguf.layout import TABLE, Rows, forms, places
from lsv_quant.recognise import POINTER
from lsv_runtime.weights.checkpoint import TensorInfo

_READS = {"codes": read_codes, "scales": read_scales, "offsets": read_offsets}
_CHANGES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"": lambda x: x, "less one": lambda x: x.float() - 1}


class GgufSource:
    """Tensors of ``file`` by the names of lsv's models. Blocks are decoded as they are read."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self._places = file, places(file)
        self._forms = forms(file, self._places)
        self._views: dict[str, tuple[str, str]] = {}
        self._infos: dict[str, TensorInfo] = {}
        for name in self._places:
            self._describe(name)
        self._descriptors = {path: open_regular(path, WEIGHTS) for path in {t.file for t in file.tensors.values()}}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        stored, view = self._views[name]
        place = self._places[stored]
        axes = len(self.file.tensors[place.rows[0].tensor].shape)
        if len(place.shape) < axes < 3:  # a row of a matrix
            return self._part(stored, view, place.rows[0], 0, 1)[0][first:last]
        if len(place.shape) > axes:  # a vector as a matrix of one row
            return self._part(stored, view, place.rows[0], 0, place.rows[0].count).mT[first:last]
        parts, begin = [], 0
        for rows in place.rows:
            own = max(first - begin, 0), min(last - begin, rows.count)
            if own[0] < own[1]:
                parts.append(self._part(stored, view, rows, *own))
            begin += rows.count
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.reshape(-1, *self._infos[name].shape[1:])

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _describe(self, name: str) -> None:
        place, layer = self._places[name], name.removesuffix(".weight")
        form = self._forms.get(layer)
        if form is None:
            self._views[name] = (name, "numbers")
            kinds = {PLAIN.get(self.file.tensors[rows.tensor].type, torch.float32) for rows in place.rows}
            plain = kinds.pop() if len(kinds) == 1 and not place.change else torch.float32
            self._infos[name] = TensorInfo(place.shape, plain)
            return
        outputs, inputs = place.shape
        self._infos[f"{layer}.codes"] = TensorInfo((outputs, inputs * form.bits // 8), torch.uint8)
        groups = TensorInfo((outputs, inputs // form.group), torch.float32)
        self._infos |= {f"{layer}.scales": groups} | ({f"{layer}.offsets": groups} if form.offsets else {})
        self._views |= {f"{layer}.{view}": (name, view) for view in _READS}
        if place.rows[0].tensor == TABLE:  # also as numbers, for heads that predict further tokens
            self._views[name], self._infos[name] = (name, "numbers"), TensorInfo(place.shape, torch.float32)

    def _part(self, name: str, view: str, rows: Rows, first: int, last: int) -> torch.Tensor:
        """The rows [first, last) of some rows of ``name``, in a view."""
        if rows.turned:
            data = self._stored_rows(rows.tensor, rows.first, rows.first + rows.turned)
            turned: torch.Tensor = self._view(name, view, rows.tensor, data).float().T[first:last]
            return turned.contiguous()
        if not rows.pairs:
            data = self._stored_rows(rows.tensor, rows.first + first, rows.first + last)
        else:
            size = rows.pairs
            begin, end = first // size * size, -(-last // size) * size
            heads = self._stored_rows(rows.tensor, rows.first + begin, rows.first + end)
            data = _in_halves(heads, len(heads) // size)[first - begin : last - begin].contiguous()
        return self._view(name, view, rows.tensor, data)

    def _view(self, name: str, view: str, tensor: str, data: torch.Tensor) -> torch.Tensor:
        kind = self.file.tensors[tensor].type
        if view != "numbers":
            return _READS[view](data, kind, self._forms[name.removesuffix(".weight")])
        numbers = _CHANGES[self._places[name].change](decode(data, kind))
        return numbers.to(self._infos[name].dtype)

    def _stored_rows(self, name: str, first: int, last: int) -> torch.Tensor:
        """Bytes of rows [first, last) over all axes but the last, or of a vector's numbers: uint8 [rows, bytes]."""
        tensor = self.file.tensors[name]
        row_bytes = tensor.row_bytes if len(tensor.shape) > 1 else tensor.row_bytes // tensor.shape[0]
        data = torch.empty((last - first, row_bytes), dtype=torch.uint8)
        room, offset = memoryview(data.numpy()).cast("B"), tensor.offset + first * row_bytes  # type: ignore[arg-type]
        while room.nbytes:
            count = os.preadv(self._descriptors[tensor.file], [room], offset)
            if count == 0:
                raise CheckpointError(f"{tensor.file} became shorter while it was being read")
            room, offset = room[count:], offset + count
        return data


def _in_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows [N, ...] of interleaved heads: first the first of each pair, then the second."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def open_source(path: str) -> GgufSource:
    """The source of a folder that ``prepare`` made."""
    pointer = json.loads(read_text(Path(path) / POINTER))
    return GgufSource(read_gguf(Path(pointer["file"])))
