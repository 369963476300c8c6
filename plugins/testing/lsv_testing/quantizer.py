"""Conformance of a weight format: what it describes can be fused and cut, and computes what the plain layer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Part
from lsv_runtime.weights.quantizer import Quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

Encode = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
"""A float32 weight [outputs, inputs] -> the tensors a checkpoint of the format holds for it, by suffix."""
MakeQuantizer = Callable[[], Quantizer]

INPUTS, OUTPUTS = 256, (128, 64, 64)


def check_quantizer(make: MakeQuantizer, encode: Encode, *, tolerance: float, ranks: Sequence[int] = (1, 2)) -> None:
    """Run the suite on a format. ``tolerance`` is the largest error relative to the largest exact output.

    ``encode`` of an online quantizer gives the plain ``weight``. Biases, fused projections, and both
    directions of cutting are covered; so is filling twice.
    """
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(outputs, INPUTS, generator=generator) * 0.1 for outputs in OUTPUTS]
    biases = [torch.randn(outputs, generator=generator) for outputs in OUTPUTS]
    x = torch.randn(5, INPUTS, generator=generator)
    exact = torch.cat([x @ weight.T + bias for weight, bias in zip(weights, biases, strict=True)], dim=-1)
    for size in ranks:
        _check_close(
            _fused(make, encode, weights, biases, x, size),
            exact,
            tolerance,
            f"fused and cut over {size} ranks",
        )
        _check_close(
            _rows(make, encode, weights[0], x, size),
            x @ weights[0].T,
            tolerance,
            f"row cut over {size} ranks",
        )
    check_refill(make, encode, weights[0])


def _fused(
    make: MakeQuantizer,
    encode: Encode,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    x: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """The outputs of a fused column layer, its parts put together again from all ranks."""
    source = _source(encode, weights, biases)
    by_rank = []
    for rank in range(size):
        w = place(rank=rank, size=size, quantizer=make())
        parts = [Part(str(n), outputs, *w.shard.split(outputs, "outputs")) for n, outputs in enumerate(OUTPUTS)]
        layer = fill_module(Column(w, parts, INPUTS, bias=True), w, source)
        by_rank.append(layer(x).split([part.width for part in parts], dim=-1))
    return torch.cat([torch.cat(shares, dim=-1) for shares in zip(*by_rank, strict=True)], dim=-1)


def _rows(make: MakeQuantizer, encode: Encode, weight: torch.Tensor, x: torch.Tensor, size: int) -> torch.Tensor:
    """The sum over the ranks of a layer whose inputs are cut."""
    outputs, inputs = weight.shape
    total = torch.zeros(len(x), outputs)
    for rank in range(size):
        w = place(rank=rank, size=size, quantizer=make())
        reads = w.shard.split(inputs, "inputs")
        layer = fill_module(Row(w, "0", inputs, outputs, reads=reads), w, _source(encode, [weight], ()))
        total += layer(x[:, slice(*reads)])
    return total


def check_refill(make: MakeQuantizer, encode: Encode, weight: torch.Tensor) -> None:
    """Filling again writes new values to the same storage."""
    w = place(quantizer=make())
    layer = Column(w, [Part("0", len(weight), 0, len(weight))], weight.shape[1])
    filler = Filler(layer, w.declaration.slots)
    filler.fill(_source(encode, [weight], ()), w.device)
    held = {name: tensor.data_ptr() for name, tensor in _held(layer).items()}
    x = torch.ones(1, weight.shape[1])
    first = layer(x).clone()
    filler.fill(_source(encode, [-weight], ()), w.device)
    assert held == {name: tensor.data_ptr() for name, tensor in _held(layer).items()}, "filling again moved the weights"
    assert not torch.equal(layer(x), first), "filling again changed nothing"


def _held(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}


def _source(encode: Encode, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> TensorsSource:
    tensors = {f"{n}.{suffix}": tensor for n, weight in enumerate(weights) for suffix, tensor in encode(weight).items()}
    return TensorsSource({**tensors, **{f"{n}.bias": bias for n, bias in enumerate(biases)}})


def _check_close(found: torch.Tensor, exact: torch.Tensor, tolerance: float, case: str) -> None:
    error = float((found.float() - exact).abs().max() / exact.abs().max())
    assert error <= tolerance, f"{case}: relative error {error:.1e}, allowed is {tolerance:.1e}"
