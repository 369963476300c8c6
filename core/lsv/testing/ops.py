"""Conformance of a kernel: bound in a module's place it computes what the module's reference does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lsv.offers import KernelOffer, load_object
from lsv.ops import Bindable, bind
from lsv.testing.tensors import fill_module, place
from lsv.weights.checkpoint import DummySource
from lsv.weights.fill import Filler
from lsv.weights.place import Weights

Make = Callable[[Weights], Bindable]
Inputs = Sequence[tuple[Any, ...]]
"""Arguments of several calls; the first axis of every tensor among them runs over the tokens."""


def check_kernel(
    offer: KernelOffer,
    make: Make,
    inputs: Inputs,
    *,
    dtype: torch.dtype = torch.float32,
    tolerance: float,
    device: torch.device = torch.device("cpu"),  # noqa: B008  a device never changes
) -> None:
    """Bind the offer to a module with random weights and compare it with the module's reference on every input.

    ``tolerance`` is relative to the largest exact output. A kernel that declares ``row_invariant`` must also give a
    token the same bits alone as in company. The weights are filled twice, as they are when they are reloaded.
    """
    w, plain = place(dtype=dtype, device=device), place(dtype=dtype, device=device)
    module, reference = make(w), make(plain)
    fill_module(reference, plain, DummySource(plain.declaration.slots))
    lines = bind(module, [offer], offer.platform, lambda offer: load_object(offer.load))
    assert lines[0].implementation == offer.load, f"the kernel refuses the module: {lines[0].why}"
    filler = Filler(module, w.declaration.slots)
    for _ in range(2):
        filler.fill(DummySource(w.declaration.slots), w.device)
        with torch.inference_mode():
            for arguments in inputs:
                _check_close(module(*arguments), reference(*arguments), tolerance)
    if offer.row_invariant:
        for arguments in inputs:
            check_rows(module, arguments)


def check_rows(module: Bindable, arguments: tuple[Any, ...]) -> None:
    """Every token's result has the same bits whether the token comes alone or with the others."""
    with torch.inference_mode():
        together = module(*arguments)
        for row in range(len(together)):
            alone = module(*(a[row : row + 1] if isinstance(a, torch.Tensor) else a for a in arguments))
            assert torch.equal(alone[0], together[row]), f"token {row} of {len(together)} differs when it comes alone"


def _check_close(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape, f"shape {tuple(found.shape)}, expected {tuple(exact.shape)}"
    assert found.dtype == exact.dtype, f"dtype {found.dtype}, expected {exact.dtype}"
    error = float((found.float() - exact.float()).abs().max() / exact.float().abs().max().clamp_min(1e-30))
    assert error <= tolerance, f"relative error {error:.1e}, allowed is {tolerance:.1e}"
