"""Conformance of a kernel: bound in a module's place it computes what the module's reference does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lsv.offers import KernelOffer, load_object
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import Bindable, MixingKernel, bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.placement import Placement, Spread
from lsv_runtime.weights.quantizer import Quantizer
from lsv_runtime.worker.experts.balancer import expert_tensors
from lsv_testing.tensors import fill_module, place

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


class SpreadRanks:
    """Whole experts of several ranks in one process, to add up what a kernel makes of them: ``modules`` by rank, and
    all experts in plain torch, the ``reference``. Both have the same random weights.
    """

    def __init__(
        self,
        make: Callable[[Weights], MoE],
        owners: Sequence[int],
        offers: Sequence[KernelOffer],
        *,
        dtype: torch.dtype = torch.float32,
        quantizer: Quantizer | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008  a device never changes
    ) -> None:
        """``owners`` has the rank of each expert. Raises ``AssertionError`` where no offer takes a rank's module."""
        plain = place(dtype=dtype, quantizer=quantizer, device=device)
        self.reference = fill_module(make(plain), plain, DummySource(plain.declaration.slots))
        self.modules: list[MoE] = []
        for rank in range(max(owners) + 1):
            declaration = place(dtype=dtype, quantizer=quantizer, device=device).declaration
            placement = Placement(rank, max(owners) + 1, [owners])
            module = make(Weights(replace(declaration, placement=placement)))
            self.line, *_ = bind(module, offers, offers[0].platform, lambda offer: load_object(offer.load))
            assert module.kernel is not None, f"no kernel takes the experts of rank {rank}: {self.line.why}"
            held = {id(parameter) for parameter in module.parameters()}
            own = [slot for slot in declaration.slots if id(slot.parameter) in held]
            Filler(module, own, every=declaration.slots).fill(DummySource(declaration.slots), device)
            self.modules.append(module)

    @property
    def spreads(self) -> list[Spread]:
        """Where experts are, as each rank knows it."""
        return [module.spread for module in self.modules if module.spread is not None]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What all ranks make of x [T, hidden], added up."""
        first, *others = (module(x) for module in self.modules)
        return sum(others, start=first)  # type: ignore[no-any-return]

    def check_nobody(self, x: torch.Tensor) -> None:
        """Fails where the last of the tokens x [T, hidden], which fill a step up, are seen by an expert, or counted."""
        weights, experts = self.reference.router(x)
        wanted = self.reference.mix(x[:-1], weights[:-1], experts[:-1])
        found = torch.zeros_like(x)
        for module, spread in zip(self.modules, self.spreads, strict=True):
            assert isinstance(module.kernel, MixingKernel), "a kernel that replicas share experts by is told of them"
            experts[-1] = spread.nobody
            spread.start_counting()
            found += module.kernel.mix(x, weights, experts.to(torch.int32))
            counted = spread.counts
            assert counted is not None
            assert torch.equal(counted, experts[:-1].flatten().bincount(minlength=len(counted)))
        _check_close(found[:-1], wanted, 1e-5)
        assert not found[-1].any()

    def exchange(self, one: int, other: int) -> None:
        """Two experts of different ranks take each other's places, as ``ExpertBalancer`` has them do."""
        held = []
        for module, spread in zip(self.modules, self.spreads, strict=True):
            places = [spread.places[number] for number in (one, other) if number in spread.places]
            held += [expert_tensors(module, place) for place in places]
            spread.exchange(one, other)
        for (name, mine), (same, theirs) in zip(*held, strict=True):
            assert name == same
            kept = mine.clone()
            mine.copy_(theirs)
            theirs.copy_(kept)
