"""The op table: modules name the op they are, platforms offer kernels for it, and core binds them once, at load.

Every ``Bindable`` module carries its own plain-torch ``reference``; a kernel that is bound takes the place of its
``forward``. Modules are offered outermost first, so a kernel for a whole layer is asked before one for a linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from lsv.config import BoundOp
from lsv.offers import KernelOffer, OpSpec


class Kernel:
    """An implementation of one module, made by ``load(module, spec)`` while its weights are still on meta."""

    composite: ClassVar[bool] = False
    """Whether it calls the modules below its own instead of taking their weights: kernels are bound to them, too."""

    def forward(self, *args: Any) -> torch.Tensor:
        """What the module's ``reference`` computes, from the same arguments."""
        raise NotImplementedError

    def pack(self) -> None:
        """Bring the weights into the kernel's own layout.

        Called each time the weights of the module and of all modules below it have been filled. A kernel that wants
        another layout takes weights with ``module.release(name)`` and hands its own to ``module.keep(name, tensor)``,
        so that filling again writes to the same storage.
        """


class CarryingKernel(Kernel):
    """A kernel of a whole layer that leaves its last sum to what comes next, which may have to norm the sum anyway."""

    def carry(self, x: torch.Tensor, change: torch.Tensor | None, step: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer over ``x + change``, or over ``x`` alone; its output is the sum of the two results."""
        raise NotImplementedError


LoadKernel = Callable[["Bindable", OpSpec], Kernel]
"""What ``KernelOffer.load`` names: the kernel of a module whose spec the offer supports."""


class Bindable(nn.Module):
    """A module that a kernel may stand in for."""

    op: ClassVar[str]
    """The name under which kernels are offered; ``spec`` may vary it."""
    row_invariant: ClassVar[bool] = False
    """Whether a row of the reference's result is independent of the other rows in its batch, bit by bit."""
    capturable: ClassVar[bool] = True
    """Whether a device can capture the reference: no shape in it depends on values."""
    kernel: Kernel | None = None
    """What was bound; None computes the reference."""

    def spec(self) -> OpSpec:
        """What a kernel for this module must be able to do: op, dtype, weight format, sizes, flags."""
        raise NotImplementedError

    def reference(self, *args: Any) -> torch.Tensor:
        """The op in plain torch: what every kernel for it computes."""
        raise NotImplementedError

    def forward(self, *args: Any) -> torch.Tensor:
        return self.reference(*args)

    def filled(self) -> None:
        """Called when all weights here and below have been filled, before a kernel packs them.

        Weights may be replaced here, e.g. quantised: see ``release`` and ``keep``.
        """

    def use(self, kernel: Kernel) -> None:
        """Let ``kernel`` stand in for the reference.

        Written to ``__dict__`` directly: ``nn.Module`` would register a kernel that is a module as a child.
        """
        self.__dict__["kernel"] = kernel
        self.__dict__["forward"] = kernel.forward

    def pack(self) -> None:
        """Let the bound kernel, if there is one, pack the weights."""
        if self.kernel is not None:
            self.kernel.pack()

    def release(self, name: str) -> torch.Tensor:
        """Hand out parameter or buffer ``name``, and leave a meta tensor of its form in its place.

        The caller then holds the only copy, except for a tied weight, which lives on in the module it is tied to.
        """
        held = self._buffers.get(name)
        if held is not None:
            self._buffers[name] = held.to("meta")
            return held
        tensor = self.get_parameter(name).detach()
        setattr(self, name, nn.Parameter(tensor.to("meta"), requires_grad=False))
        return tensor

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Keep ``tensor`` of any shape and dtype as buffer ``name``; the buffer itself, which is what to compute with.

        Where the buffer already exists with the same shape, dtype and device, ``tensor`` is copied into its storage,
        so that addresses handed to native code or captured in a graph stay good when weights are filled again.
        Otherwise ``tensor`` becomes the buffer. Buffers kept this way are not part of the module's state dict.
        """
        old = self._buffers.get(name)
        if old is None or (old.shape, old.dtype, old.device) != (tensor.shape, tensor.dtype, tensor.device):
            self.register_buffer(name, tensor, persistent=False)
            return tensor
        return old.copy_(tensor)


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``"bfloat16"``, the spelling of ``EngineConfig.dtype`` and ``OpSpec.dtype``."""
    return str(dtype).removeprefix("torch.")


def bind(
    model: nn.Module, offers: Sequence[KernelOffer], platform: str, load: Callable[[KernelOffer], LoadKernel]
) -> tuple[BoundOp, ...]:
    """Choose a kernel for every module of ``model`` and say what was chosen and why.

    Among the offers for an op on this platform that support the module, the highest ``rank`` is bound.
    Modules below a bound one are not offered: they belong to its kernel, unless that is composite. No offers at all
    leaves every op to its reference.
    """
    table: dict[str, list[KernelOffer]] = {}
    for offer in sorted(offers, key=lambda offer: -offer.rank):
        if offer.platform in (platform, "*"):
            table.setdefault(offer.op, []).append(offer)
    lines: Counter[BoundOp] = Counter()
    _bind_below(model, table, load, lines, set())
    return tuple(
        BoundOp(line.op, line.implementation, count, line.why, line.row_invariant) for line, count in lines.items()
    )


def _bind_below(
    module: nn.Module,
    table: Mapping[str, Sequence[KernelOffer]],
    load: Callable[[KernelOffer], LoadKernel],
    lines: Counter[BoundOp],
    seen: set[int],
) -> None:
    if id(module) in seen:
        return
    seen.add(id(module))
    if isinstance(module, Bindable) and _bind_one(module, table, load, lines):
        return
    for child in module.children():
        _bind_below(child, table, load, lines, seen)


def _bind_one(
    module: Bindable,
    table: Mapping[str, Sequence[KernelOffer]],
    load: Callable[[KernelOffer], LoadKernel],
    lines: Counter[BoundOp],
) -> bool:
    """Bind one module; whether the modules below it belong to its kernel."""
    spec = module.spec()
    refusals: list[str] = []
    for offer in table.get(spec.op, ()):
        refusal = offer.supports(spec)
        if refusal is None:
            kernel = load(offer)(module, spec)
            module.use(kernel)
            lines[BoundOp(spec.op, offer.load, 0, "; ".join(refusals) or "offered", offer.row_invariant)] += 1
            return not kernel.composite
        refusals.append(f"{offer.load}: {refusal}")
    why = "; ".join(refusals) or "no kernel offered"
    lines[BoundOp(spec.op, "reference", 0, why, module.row_invariant)] += 1
    return False


def find_uncapturable(module: nn.Module) -> frozenset[str]:
    """The ops of a bound model that are left to references which no device can capture."""
    found: frozenset[str] = frozenset()
    if isinstance(module, Bindable):
        if module.kernel is not None and not module.kernel.composite:
            return found
        if module.kernel is None and not module.capturable:
            found = frozenset((module.op,))
    return found.union(*(find_uncapturable(child) for child in module.children()))
