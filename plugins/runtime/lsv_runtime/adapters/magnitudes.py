"""DoRA: a layer's outputs brought to magnitudes of their own, by one factor for each output.

With the base weight W and an adapter's s B A, the layer's weight is ``m * (W + s B A) / |W + s B A|``: its rows have
the lengths ``m``, which were trained. Those of the sum follow from those of W's rows, which are kept from when the
weights were filled, and from ``W A^T``, which the layer itself computes: whatever its format, no weight is read again.

Source: Liu et al., DoRA: Weight-Decomposed Low-Rank Adaptation, 2024; ``peft.tuners.lora.dora``, release 0.17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.adapters.shares import Share
from lsv_runtime.adapters.slots import AdapterSlots, Slots
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.weights.quantizer import Linear

_LENGTHS = {torch.float16: 2.0**8}
_LENGTH = 2.0**14
"""What rows are brought to before a layer multiplies them: beside their results a bias is to be small."""
_LEAST = 1e-30

Held = Mapping[Slots, Any]
"""An adapter on the host: what each layer's slot is filled with."""
Rescaling = Mapping[Slots, torch.Tensor]
"""By layer, ``AdapterSlots.rescale`` of an adapter."""


class _Sums(NamedTuple):
    """Of a layer, both float32 [outputs]."""

    squares: torch.Tensor
    """The squared lengths of the sum's rows, or of this rank's share of them."""
    bias: torch.Tensor


def agree(fine: bool, communicator: Communicator | None, device: torch.device) -> bool:
    """Whether all ranks of a group, which must ask together, say that they are ``fine``."""
    if communicator is None:
        return fine
    return int(communicator.all_reduce(torch.full((1,), float(fine), device=device))) == communicator.group.size


def find_rescaling(held: Held, communicator: Communicator | None, device: torch.device) -> Rescaling | None:
    """What brings the layers' outputs to an adapter's magnitudes; None where another rank can't tell its own.

    All ranks of a group must ask together. Raises ``CheckpointError`` for a layer whose format does not tell its
    weights.
    """
    sums: dict[AdapterSlots, _Sums] = {}
    error: CheckpointError | None = None
    shares = list(_with_magnitudes(held))
    try:
        sums = {slots: _measure(slots, share) for slots, share in shares}
    except CheckpointError as found:
        error = found
    fine = agree(error is None, communicator, device)
    if error is not None:
        raise error
    if not fine:
        return None
    if communicator is not None:
        sums = _add_up(sums, communicator)
    return {slots: _rescale(share, *sums[slots]) for slots, share in shares}


def has_magnitudes(held: Held) -> bool:
    """Whether an adapter brings outputs to magnitudes of their own."""
    return any(True for _ in _with_magnitudes(held))


def _with_magnitudes(held: Held) -> Iterator[tuple[AdapterSlots, Share]]:
    for slots, share in held.items():
        if isinstance(slots, AdapterSlots) and isinstance(share, Share) and share.magnitude is not None:
            yield slots, share


def _measure(slots: AdapterSlots, share: Share) -> _Sums:
    linear = slots.linear
    assert linear is not None, "slots of a model have a layer"
    squares = linear._buffers.get("squares")
    if squares is None:
        raise CheckpointError(
            f"{linear.layer.name}: DoRA needs the norms of weights, which the format {linear.format} does not "
            "provide: merge the adapter into its model's weights"
        )
    a, b = (matrix.to(squares.device).float() for matrix in (share.a, share.b))
    rank = a.shape[1]
    products, bias = _multiply(linear, a.flatten(0, 1))
    found, grams = squares.clone(), a @ a.mT
    for source, start, stop in slots.parts:
        own = b[:, start:stop]
        cross = 2 * products[source * rank : (source + 1) * rank, start:stop] + grams[source] @ own
        found[start:stop] += (cross * own).sum(dim=0)
    return _Sums(found, bias)


def _multiply(linear: Linear, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [R, inputs] -> the layer's products with them, without its bias [R, outputs], and its bias [outputs]."""
    dtype = linear.layer.dtype
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=_LEAST) / _LENGTHS.get(dtype, _LENGTH)
    asked = torch.cat(((rows / lengths).to(dtype), rows.new_zeros(1, rows.shape[1]).to(dtype)))
    found = linear.product(asked).float()
    if not bool(found.isfinite().all()):
        raise CheckpointError(f"{linear.layer.name}: products with the adapter's matrices are not finite")
    return (found[:-1] - found[-1]) * lengths, found[-1]


def _add_up(sums: Mapping[AdapterSlots, _Sums], communicator: Communicator) -> dict[AdapterSlots, _Sums]:
    """The same with the shares of all ranks, where layers are cut over their inputs."""
    cut = [slots for slots in sums if slots.layer.reads is not None]
    if not cut:
        return dict(sums)
    every = communicator.all_reduce(torch.cat([sums[slots].squares for slots in cut]))
    parts = torch.split(every, [len(sums[slots].squares) for slots in cut])
    whole = {slots: _Sums(part, sums[slots].bias) for slots, part in zip(cut, parts, strict=True)}
    return {slots: whole.get(slots, own) for slots, own in sums.items()}


def _rescale(share: Share, squares: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    assert share.magnitude is not None
    magnitude = share.magnitude.to(squares.device)
    scale = torch.where(magnitude.isnan(), 1.0, magnitude / squares.clamp(min=_LEAST).sqrt())
    return torch.stack((scale, (1 - scale) * bias))
