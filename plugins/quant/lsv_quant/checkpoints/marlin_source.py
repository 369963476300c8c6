"""Checkpoints whose codes lie as Marlin's kernels for NVIDIA GPUs read them, turned back into GPTQ's plain words.

Codes of 16 inputs, of all outputs, are a row of int32: tiles of 16 by 16, four tiles permuted together so that each
thread of a warp finds its own side by side. Scales are permuted within 64 outputs, those of a single group within 32.
With 2:4 sparsity such a row has the 16 codes that are kept of 32 inputs, and a row of int16 says which, as NVIDIA's
sparse matrix unit takes it: two bits a code, the outputs permuted within 64. What is not kept is 0, the middle code.

Sources: Frantar et al. 2024 and ``marlin/__init__.py`` of IST-DASLab; compressed-tensors 0.9,
``sparse_quantized_compressors.marlin_24``; CUTLASS, ``reorder_meta`` of ``host_reorder.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.checkpoint import CheckpointSource, SafetensorsSource, TensorInfo

_TILE = 16
_BITS = (4, 8)


class _Form(NamedTuple):
    """The tensors of a layer. ``kept`` says which codes a sparse layer has; ``lock`` is a kernel's own, if stored."""

    codes: str
    scales: str
    kept: str | None = None
    lock: str = "workspace"


_FORMS = (_Form("B_24", "s", "B_meta"), _Form("B", "s"), _Form("weight_packed", "scale_packed", "meta"))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One whose codes are stored in this layout."""

    name: str
    form: _Form
    bits: int
    inputs: int
    outputs: int
    groups: int

    @property
    def span(self) -> int:
        """Inputs of a row of words."""
        return 2 * _TILE if self.form.kept else _TILE

    @property
    def per_word(self) -> int:
        return 32 // self.bits


class MarlinSource:
    """Layers as ``qweight`` int32 [inputs / n, outputs], n codes in a word from its low end, and ``scales`` [groups,
    outputs]; everything else in ``source`` unchanged.

    Raises ``CheckpointError`` for a layer whose tensors contradict one another.
    """

    def __init__(self, source: CheckpointSource) -> None:
        self.source = source
        layers = list(_find_layers(source.tensors()))
        self._codes = {f"{layer.name}.qweight": layer for layer in layers}
        self._scales = {f"{layer.name}.scales": layer for layer in layers}
        gone = {f"{layer.name}.{suffix}" for layer in layers for suffix in layer.form if suffix}
        self._infos = {name: info for name, info in source.tensors().items() if name not in gone}
        for name, layer in self._codes.items():
            self._infos[name] = TensorInfo((layer.inputs // layer.per_word, layer.outputs), torch.int32)
        for name, layer in self._scales.items():
            dtype = source.tensors()[f"{layer.name}.{layer.form.scales}"].dtype
            self._infos[name] = TensorInfo((layer.groups, layer.outputs), dtype)

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        if name in self._codes:
            return self._read_codes(self._codes[name], first, last)
        if name in self._scales:
            return self._read_scales(self._scales[name], first, last)
        return self.source.read(name, first, last)

    def close(self) -> None:
        self.source.close()

    def _read_codes(self, layer: _Layer, first: int, last: int) -> torch.Tensor:
        words = layer.span // layer.per_word  # of GPTQ's, for each row of these
        begin, end = first // words, -(-last // words)
        stored = self.source.read(f"{layer.name}.{layer.form.codes}", begin, end)
        codes = _unpack_tiles(stored, layer.bits, layer.form.kept is not None)
        if layer.form.kept:
            marks = self.source.read(f"{layer.name}.{layer.form.kept}", begin, end)
            codes = _spread_kept(codes, marks, 1 << layer.bits - 1)
        codes = codes[first * layer.per_word - begin * layer.span :][: (last - first) * layer.per_word]
        return _pack_inputs(codes, layer.bits)

    def _read_scales(self, layer: _Layer, first: int, last: int) -> torch.Tensor:
        stored = self.source.read(f"{layer.name}.{layer.form.scales}", first, last)
        order = _scale_order(single=layer.groups == 1, sparse=layer.form.kept is not None)
        return stored.reshape(-1, len(order))[:, order.argsort()].reshape(stored.shape)


def _find_layers(tensors: Mapping[str, TensorInfo]) -> Iterator[_Layer]:
    for name in tensors:
        layer, _, suffix = name.rpartition(".")
        form = next((form for form in _FORMS if form.codes == suffix and f"{layer}.{form.scales}" in tensors), None)
        if form is not None:
            yield _measure(layer, form, tensors)


def _measure(name: str, form: _Form, tensors: Mapping[str, TensorInfo]) -> _Layer:
    """The layer's sizes, from the shapes of its tensors. Raises ``CheckpointError``."""
    codes, scales = tensors[f"{name}.{form.codes}"], tensors[f"{name}.{form.scales}"]
    if codes.dtype != torch.int32 or len(codes.shape) != 2 or len(scales.shape) != 2:
        raise CheckpointError(f"{name}.{form.codes} must be int32 with two axes, as {form.scales} has; found {codes}")
    (rows, words), (groups, outputs) = codes.shape, scales.shape
    bits = 32 * words // max(1, _TILE * outputs)
    if bits not in _BITS or outputs % 64 or bits * _TILE * outputs != 32 * words:
        raise CheckpointError(f"{name}: {list(codes.shape)} words are no tiles of 4 or 8 bits for {outputs} outputs")
    layer = _Layer(name, form, bits, rows * (2 if form.kept else 1) * _TILE, outputs, groups)
    if form.kept and tensors.get(f"{name}.{form.kept}") != TensorInfo((rows, 2 * outputs), torch.int16):
        raise CheckpointError(f"{name}.{form.kept} must be int16 {[rows, 2 * outputs]}")
    return layer


@cache
def _tile_order(bits: int, sparse: bool) -> torch.Tensor:
    """Which code of four tiles, read input by input, stands in each place: int64 [1024].

    A warp's thread holds pairs of neighbouring inputs; of two columns of outputs, or, sparse, of two halves of one.
    """
    order: list[int] = []
    for thread in range(32):
        column, pair = thread // 4, 2 * (thread % 4)
        inputs = (pair, pair + 1, pair + 8, pair + 9)
        start = column // 2 * 256 + 8 * (column % 2) if sparse else column
        half, tile = (4, 1) if sparse else (8, 256)
        own = [16 * row + start + half * block for block in (0, 1) for row in inputs]
        order += [place + tile * number for number in range(4) for place in own]
    in_word = (0, 2, 4, 6, 1, 3, 5, 7) if bits == 4 else (0, 2, 1, 3)
    return torch.tensor(order).reshape(-1, len(in_word))[:, in_word].flatten()


def _scale_order(*, single: bool, sparse: bool) -> torch.Tensor:
    """Which output's scale stands in each place, of 64 or 32 outputs."""
    if sparse:
        eight = torch.arange(8) if single else torch.tensor((0, 4, 1, 5, 2, 6, 3, 7))
        return (8 * torch.arange(8)[:, None] + eight).flatten()
    if single:
        return (2 * torch.arange(4)[:, None] + torch.tensor((0, 1, 8, 9, 16, 17, 24, 25))).flatten()
    return (torch.arange(8)[:, None] + 8 * torch.arange(8)).flatten()


def _unpack_tiles(words: torch.Tensor, bits: int, sparse: bool) -> torch.Tensor:
    """Words int32 [rows, outputs * 16 / n] -> codes uint8 [rows * 16, outputs]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8)
    order = _tile_order(bits, sparse)
    tiles = codes.reshape(-1, len(order))[:, order.argsort()].reshape(len(words), -1, _TILE, _TILE)
    return tiles.transpose(1, 2).flatten(2).flatten(0, 1)


def _spread_kept(codes: torch.Tensor, marks: torch.Tensor, middle: int) -> torch.Tensor:
    """Kept codes [rows * 16, outputs] and where they belong, int16 [rows, 2 * outputs] -> [rows * 32, outputs]."""
    outputs = codes.shape[1]
    places = marks[:, _mark_order(outputs)].reshape(-1, outputs, 2, 1)  # two times 16 inputs
    places = places >> torch.arange(0, 16, 2, dtype=torch.int16) & 3
    kept = codes.unflatten(0, (-1, _TILE)).transpose(1, 2).reshape(-1, outputs, 8, 2)
    dense = torch.full((*kept.shape[:3], 4), middle, dtype=torch.uint8)
    dense.scatter_(-1, places.reshape(kept.shape).long(), kept)
    return dense.flatten(2).transpose(1, 2).flatten(0, 1)


@cache
def _mark_order(outputs: int) -> torch.Tensor:
    """Where in a row of marks those of an output's first and second 16 inputs stand, int64 [2 * outputs]."""
    row, half = torch.arange(outputs)[:, None], torch.arange(2)
    place = row // 64 * 64 + row % 2 * 2 + row % 8 // 4 + row % 4 // 2 * 32 + row % 64 // 8 * 4
    odd = place % 2  # of two by two marks, those off the diagonal change places
    return ((place + half - odd) * 2 + odd).flatten()


def _pack_inputs(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes uint8 [inputs, outputs] -> int32 [inputs / n, outputs], the first input in the low bits."""
    parts = codes.unflatten(0, (-1, 32 // bits)).int()
    words = torch.zeros(len(parts), codes.shape[1], dtype=torch.int32)
    for place in range(parts.shape[1]):
        words |= parts[:, place] << bits * place
    return words


def open_source(path: str) -> MarlinSource:
    return MarlinSource(SafetensorsSource(Path(path)))
