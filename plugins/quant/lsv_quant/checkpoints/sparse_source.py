"""compressed-tensors' sparse weights, made dense while they are read.

For ``<layer>.weight`` [N, K] such a checkpoint has ``shape`` (N, K); ``bitmask`` uint8 [N, ceil(K / 8)], a bit for each
weight from the low end, set where it is stored; and ``compressed``, the stored weights row by row, in any dtype. As
``sparse-24-bitmask`` it is a matrix [N, K / 2], two of four neighbours; as ``sparse-bitmask`` one long row, and
``row_offsets`` [N] says where each row begins. Source: ``compressors.sparse_compressors`` of the package, version 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.checkpoint import CheckpointSource, SafetensorsSource, TensorInfo

_VALUES = ".compressed"
_HELPERS = (".shape", ".bitmask", ".row_offsets")
_RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes: not every dtype can be selected from."""


class SparseSource:
    """Sparse weights as ``weight`` [N, K] with zeros in it; everything else in ``source`` unchanged.

    Raises ``CheckpointError`` for a weight whose tensors contradict one another.
    """

    def __init__(self, source: CheckpointSource) -> None:
        self.source = source
        layers = [name.removesuffix(_VALUES) for name in source.tensors() if name.endswith(_VALUES)]
        self._layers = {f"{layer}.weight": layer for layer in layers}
        gone = {f"{layer}{suffix}" for layer in layers for suffix in (_VALUES, *_HELPERS)}
        self._infos = {name: info for name, info in source.tensors().items() if name not in gone}
        for weight, layer in self._layers.items():
            self._infos[weight] = self._describe(layer)

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        if name not in self._layers:
            return self.source.read(name, first, last)
        info, layer = self._infos[name], self._layers[name]
        stored = self._unpack(layer, first, last, info.shape[1])
        values = self._read_values(layer, first, last, int(stored.sum()))
        dense = torch.zeros(last - first, info.shape[1], dtype=info.dtype)
        raw = _RAW[info.dtype.itemsize]
        dense.view(raw)[stored] = values.contiguous().view(raw).flatten()
        return dense

    def close(self) -> None:
        self.source.close()

    def _describe(self, layer: str) -> TensorInfo:
        found = self.source.tensors()
        if not all(f"{layer}{suffix}" in found for suffix in _HELPERS[:2]):
            raise CheckpointError(f"{layer}{_VALUES} is a sparse weight without shape and bitmask")
        if math.prod(found[f"{layer}.shape"].shape) != 2:
            raise CheckpointError(f"{layer}.shape must be two numbers")
        whole = self.source.read(f"{layer}.shape", 0, 2)
        outputs, inputs = (int(size) for size in whole.flatten())
        values = found[f"{layer}{_VALUES}"]
        flat = len(values.shape) == 1
        wanted = {".bitmask": ((outputs, -(-inputs // 8)), torch.uint8)}
        if flat:
            wanted[".row_offsets"] = ((outputs,), torch.int64)
        else:
            wanted[_VALUES] = ((outputs, inputs // 2), values.dtype)
        for suffix, (shape, dtype) in wanted.items():
            info = found.get(f"{layer}{suffix}")
            if info != TensorInfo(shape, dtype):
                raise CheckpointError(f"{layer}{suffix} must be {dtype} {list(shape)}, found {info or 'none'}")
        return TensorInfo((outputs, inputs), values.dtype)

    def _unpack(self, layer: str, first: int, last: int, inputs: int) -> torch.Tensor:
        """Which weights of these rows are stored, bool [rows, inputs]."""
        packed = self.source.read(f"{layer}.bitmask", first, last)
        bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
        return bits.flatten(-2)[:, :inputs].bool()

    def _read_values(self, layer: str, first: int, last: int, count: int) -> torch.Tensor:
        """The stored weights of these rows, of which ``count`` are marked."""
        name = f"{layer}{_VALUES}"
        if len(self.source.tensors()[name].shape) == 2:
            values = self.source.read(name, first, last)
        else:
            begin = int(self.source.read(f"{layer}.row_offsets", first, first + 1))
            total = self.source.tensors()[name].shape[0]
            values = self.source.read(name, min(begin, total), min(begin + count, total))
        if values.numel() != count:
            raise CheckpointError(
                f"{layer}.bitmask marks {count} weights of rows {first} to {last - 1}, and {name} has {values.numel()}"
            )
        return values


def open_source(path: str) -> SparseSource:
    return SparseSource(SafetensorsSource(Path(path)))
