"""The layout of the KV cache: for every place in a group one tensor of keys and one of values.

A page is a block of tokens in all of them. Layers of different groups that have the same place share its tensors,
because a page belongs to one group at a time; a narrower layer uses the front of each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lsv_hpu.neural_compressor.calibration import Calibration, raise_peak
from lsv_hpu.vendor_ops import VendorOps
from lsv_runtime.attention import AttentionLayer, CacheSpec


@dataclass(frozen=True, slots=True)
class Scales:
    """Of a layer's keys or values in 8-bit floats."""

    scale: torch.Tensor
    """float32 []: they are in units of this."""

    inverse: torch.Tensor
    """float32 []: its inverse."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer. What it is told of the layer is the form of its heads."""

    keys: torch.Tensor
    """[pages * block_size, kv_heads * head_dim of the widest layer]."""

    values: torch.Tensor
    """As ``keys``."""

    block_size: int

    scales: tuple[Scales, Scales] | None
    """Those of keys and of values; None for a cache in the step's own dtype."""

    ops: VendorOps

    peaks: tuple[torch.Tensor, ...]
    """The largest key and value written so far; empty unless they are measured."""

    def write(
        self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v [T, kv_heads, head_dim] to ``slots`` int64 [T]. Returns them as they will be read."""
        for peak, x in zip(self.peaks, (k, v), strict=False):
            raise_peak(peak, x)
        kept = []
        for which, (x, rows) in enumerate(zip((k, v), self._rows(layer), strict=True)):
            if self.scales is None:
                put_rows(rows, slots, x.flatten(1))
                kept.append(x)
            else:
                scales = self.scales[which]
                coded = self.ops.to_fp8(x, scales.inverse)
                put_rows(rows, slots, coded.flatten(1))
                kept.append(self.ops.from_fp8(coded, scales.scale, x.dtype))
        return kept[0], kept[1]

    def read(self, pages: torch.Tensor, layer: AttentionLayer, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of pages int64 [N]: [N, block_size, kv_heads, head_dim] each, in ``dtype``."""
        keys, values = (rows.unflatten(0, (-1, self.block_size)).index_select(0, pages) for rows in self._rows(layer))
        return self._decoded((keys, values), layer, dtype)

    def read_tokens(
        self, slots: torch.Tensor, layer: AttentionLayer, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of single tokens int64 [T]: [T, kv_heads, head_dim] each, in ``dtype``."""
        keys, values = (rows.index_select(0, slots) for rows in self._rows(layer))
        return self._decoded((keys, values), layer, dtype)

    def of(self, layer: AttentionLayer) -> LayerCache:
        """This; what is given a layer's cache may ask as if it had the whole."""
        return self

    def _decoded(
        self, found: tuple[torch.Tensor, torch.Tensor], layer: AttentionLayer, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.scales is not None:
            keys, values = (self.ops.from_fp8(x, one.scale, dtype) for x, one in zip(found, self.scales, strict=True))
        else:
            keys, values = found
        heads = (layer.kv_heads, layer.head_dim)
        return keys.unflatten(-1, heads), values.unflatten(-1, heads)

    def _rows(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        width = layer.kv_heads * layer.head_dim
        return self.keys[:, :width], self.values[:, :width]


@dataclass(frozen=True, slots=True)
class FlatCache:
    """Keys and values of all layers."""

    keys: tuple[torch.Tensor, ...]
    """By place: [pages * block_size, kv_heads * head_dim of the widest layer]."""

    values: tuple[torch.Tensor, ...]
    """As ``keys``."""

    block_size: int

    scales: Mapping[int, tuple[Scales, Scales]]
    """Those of keys and of values by layer index; empty for a cache in the step's own dtype."""

    ops: VendorOps

    peaks: Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    """The largest key and value written so far by layer index; empty unless they are measured."""

    @property
    def memory(self) -> list[torch.Tensor]:
        """All of it, uint8 [pages, bytes] each."""
        rows = (*self.keys, *self.values)
        return [part.view(-1, self.block_size * part.shape[1]).view(torch.uint8) for part in rows]

    def of(self, layer: AttentionLayer) -> LayerCache:
        """The part of a layer."""
        place, index = layer.place, layer.keeper
        scales, peaks = self.scales.get(index), self.peaks.get(index, ())
        return LayerCache(self.keys[place], self.values[place], self.block_size, scales, self.ops, peaks)


def put_rows(rows: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> None:
    """``rows[slots] = x``. Torch can't index 8-bit floats on the CPU, so emulation handles them as bytes."""
    if x.dtype.itemsize == 1 and rows.device.type != "hpu":
        rows, x = rows.view(torch.uint8), x.view(torch.uint8)
    rows.index_copy_(0, slots, x)


def make_cache(
    spec: CacheSpec, device: torch.device, ops: VendorOps, calibration: Calibration | None = None
) -> FlatCache:
    """A cache of zeros: lists are padded with the null page, to which only zeros are ever written."""
    widths: dict[int, int] = {}
    for (_, place), layer in spec.placed().items():
        widths[place] = max(widths.get(place, 0), layer.kv_heads * layer.head_dim)

    def make() -> tuple[torch.Tensor, ...]:
        shapes = ((spec.pages * spec.block_size, widths[place]) for place in sorted(widths))
        return tuple(torch.zeros(shape, dtype=spec.dtype, device=device) for shape in shapes)

    def scales(value: float) -> Scales:
        scale = torch.tensor(value, dtype=torch.float32, device=device)
        return Scales(scale, scale.reciprocal())

    kept = [layer for layer in spec.layers if layer.reads is None]
    coded = kept if spec.dtype.itemsize == 1 else ()
    by_layer = {layer.index: tuple(map(scales, _units(layer, calibration))) for layer in coded}
    measuring = calibration if calibration is not None and calibration.measuring else None
    peaks = {layer.index: measuring.watch_cache(layer.index, device) for layer in kept} if measuring else {}
    return FlatCache(make(), make(), spec.block_size, by_layer, ops, peaks)  # type: ignore[arg-type]


def _units(layer: AttentionLayer, calibration: Calibration | None) -> tuple[float, float]:
    """The units of keys and values: as measured or, if they were not, as in the checkpoint."""
    if calibration is None or calibration.measuring:
        return layer.key_scale, layer.value_scale
    return (
        calibration.cache_scale(layer.index, "k_cache", layer.key_scale),
        calibration.cache_scale(layer.index, "v_cache", layer.value_scale),
    )
