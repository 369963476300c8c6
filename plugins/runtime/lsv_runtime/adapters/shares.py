"""What a rank holds of an adapter for a linear layer, whatever slots it is put into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.adapters.checkpoint import Pair
from lsv_runtime.weights.finite import check_finite
from lsv_runtime.weights.quantizer import LinearLayer


class Share(NamedTuple):
    """What this rank holds of an adapter for a layer."""

    a: torch.Tensor
    """[sources, rank, inputs]."""
    b: torch.Tensor
    """[rank, outputs]."""
    magnitude: torch.Tensor | None = None
    """float32 [outputs]: the lengths that rows of the layer's weight are brought to, NaN for those that stay."""


def parts_of(layer: LinearLayer) -> Iterator[tuple[int, int, int]]:
    """Of each fused part: the index of the projection it is of, among those that are stored, and its outputs
    [start, stop) among the layer's.
    """
    sources, start = tuple(dict.fromkeys(layer.part_names)), 0
    for name, width in zip(layer.part_names, layer.outputs, strict=True):
        yield sources.index(name), start, start + width
        start += width


def check_scaled(name: str, pair: Pair, dtype: torch.dtype) -> None:
    """Raises ``CheckpointError`` for matrices that ``dtype`` can't hold, once they are scaled."""
    check_finite(f"the lora_A of {name}", pair.a, dtype)
    check_finite(f"the lora_B of {name}, scaled,", pair.b, dtype)


def cut_share(layer: LinearLayer, pairs: Mapping[str, Pair], dtype: torch.dtype) -> Share:
    """What this rank holds of an adapter's ``pairs`` by source, only as wide as the adapter's own ranks.

    Raises ``CheckpointError`` for matrices of other sizes than the layer's.
    """
    rank = max(len(pair.a) for pair in pairs.values())
    start, stop = layer.reads or (0, layer.inputs)
    a = torch.zeros((len(set(layer.part_names)), rank, layer.inputs), dtype=dtype)
    b = torch.zeros((rank, layer.width), dtype=dtype)
    magnitude = torch.full((layer.width,), torch.nan)
    for name, (outputs, inputs), spans, (source, first, last) in zip(
        layer.part_names, layer.stored, layer.spans, parts_of(layer), strict=True
    ):
        pair = pairs.get(name)
        if pair is None:
            continue
        if pair.embeds or pair.copy is not None or pair.base is not None:
            raise CheckpointError(f"{name}: whole copies are served of embeddings and heads, not of linear layers")
        if pair.a.shape[1] != inputs or len(pair.b) != outputs:
            raise CheckpointError(
                f"{name} has {inputs} inputs and {outputs} outputs, but the adapter's lora_A is "
                f"{list(pair.a.shape)}, its lora_B {list(pair.b.shape)}: it is for another model"
            )
        check_scaled(name, pair, dtype)
        a[source, : len(pair.a)] = pair.a[:, start:stop]
        b[: len(pair.a), first:last] = torch.cat([pair.b[low:high] for low, high in spans]).T
        if pair.magnitude is not None:
            magnitude[first:last] = torch.cat([pair.magnitude[low:high] for low, high in spans])
    rescales = any(pair.magnitude is not None for pair in pairs.values())
    return Share(a, b, magnitude if rescales else None)
