"""The op table: modules name the op they are, platforms offer kernels for it, and core binds them once, at load.

Every ``Bindable`` module carries its own plain-torch ``reference``; a kernel that is bound takes the place of its
``forward``. Modules are offered outermost first, so a kernel for a whole layer is asked before one for a linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import torch
from torch import nn

from lsv.config import BoundOp
from lsv.offers import KernelOffer, OpSpec

ADAPTERS = "lora.add"
"""The op of the slots for adapters."""
LOOKED_UP = "looked_up"
"""The flag of a linear layer in whose weights embeddings are looked up, too."""
_WITHOUT_ADAPTERS = "computes several layers at once, without their adapters"
_WITHOUT_ROWS = "does not look up the embeddings that the layer's weights are, too"


class Kernel:
    """An implementation of one module, made by ``load(module, spec)`` while its weights are still on meta."""

    composite: ClassVar[bool] = False
    """Whether it calls the modules below its own instead of taking their weights: kernels are bound to them, too."""
    keeps_parts: ClassVar[bool] = False
    """Of a kernel that does take them: whether the modules below can be called all the same."""
    adapts_parts: ClassVar[bool] = False
    """Of a kernel that does take them: whether it has adapters of the modules below add to what it computes."""

    def forward(self, *args: Any) -> torch.Tensor:
        """What the module's ``reference`` computes, from the same arguments."""
        raise NotImplementedError

    def takes(self, name: str) -> bool:
        """Whether ``pack`` takes weight ``name`` and leaves nothing of it, so that the next one can be read into the
        same memory. It may be so for one weight of a module.
        """
        return False

    def packed_bytes(self) -> int | None:
        """What the module itself will hold once its weights are packed; None: as many bytes as before. For planning, so
        no weights are there.
        """
        return None

    def pack(self) -> None:
        """Bring the weights into the kernel's own layout.

        Called each time the weights of the module and of all modules below it have been filled. A kernel that wants
        another layout takes weights with ``module.release(name)`` and hands its own to ``module.keep(name, tensor)``,
        so that filling again writes to the same storage. Nothing else may depend on the weights' values: where experts
        move between ranks, those tensors are written to without a call.
        """


class CarryingKernel(Kernel):
    """A kernel of a whole layer that leaves its last sum to what comes next, which may have to norm the sum anyway."""

    def carry(self, x: torch.Tensor, change: torch.Tensor | None, step: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer over ``x + change``, or over ``x`` alone; its output is the sum of the two results."""
        raise NotImplementedError


class MixingKernel(Kernel):
    """A kernel of a mixture of experts that can also be told what was chosen."""

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """What the chosen experts make of x [T, width], weighed: weights and ids [T, top] -> [T, width]."""
        raise NotImplementedError

    def held_tensors(self, expert: int) -> Mapping[str, torch.Tensor]:
        """By name, all tensors that one of this rank's experts is computed with, for others to write to; empty where
        they are with the expert's own modules.
        """
        return {}


class GatedKernel(Kernel):
    """A kernel of a linear layer that may already put the layer's results through a gate."""

    def ungated(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's results before that: x [..., inputs] -> [..., outputs]."""
        raise NotImplementedError


class TableKernel(Kernel):
    """A kernel that looks up rows of weights: one of embeddings, or one of a linear layer whose offer ``looks_up``."""

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The weights of some outputs in the module's dtype, ids int64 [T] -> [T, inputs]: those of the reference."""
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

    def made_bytes(self) -> int:
        """Bytes of what ``filled`` makes beside the weights, such as a table of positions. For planning."""
        return 0

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
    Modules below a bound one are not offered: they belong to its kernel, unless that is composite, or they are slots
    for adapters. No offers at all leaves every op to its reference.
    """
    table: dict[str, list[KernelOffer]] = {}
    for offer in sorted(offers, key=lambda offer: -offer.rank):
        if offer.platform in (platform, "*"):
            table.setdefault(offer.op, []).append(offer)
    binding = _Binding(table, load, _find_adapters(model))
    binding.bind_below(model)
    return tuple(
        BoundOp(line.op, line.implementation, count, line.why, line.row_invariant)
        for line, count in binding.lines.items()
    )


class _Binding:
    """Binds the modules of one model, and counts what was bound."""

    def __init__(
        self,
        table: Mapping[str, Sequence[KernelOffer]],
        load: Callable[[KernelOffer], LoadKernel],
        adapters: Mapping[int, Sequence[Bindable]],
    ) -> None:
        self.lines: Counter[BoundOp] = Counter()
        self._table, self._load, self._adapters = table, load, adapters
        self._seen: set[int] = set()

    def bind_below(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        bound = isinstance(module, Bindable) and self._bind_one(module)
        for child in self._adapters.get(id(module), ()) if bound else module.children():
            self.bind_below(child)

    def _bind_one(self, module: Bindable) -> bool:
        """Bind one module; whether the modules below it belong to its kernel."""
        spec = module.spec()
        if id(module) in self._adapters:
            spec = msgspec.structs.replace(spec, adapters=True)
        refusals: list[str] = []
        for offer in self._table.get(spec.op, ()):
            refusal = _find_refusal(offer, spec)
            if refusal is None:
                kernel = self._load(offer)(module, spec)
                module.use(kernel)
                why = "; ".join(refusals) or "offered"
                self.lines[BoundOp(spec.op, offer.load, 0, why, offer.row_invariant)] += 1
                return not kernel.composite
            refusals.append(f"{offer.load}: {refusal}")
        why = "; ".join(refusals) or "no kernel offered"
        self.lines[BoundOp(spec.op, "reference", 0, why, module.row_invariant)] += 1
        return False


def _find_refusal(offer: KernelOffer, spec: OpSpec) -> str | None:
    """None, or why an offered kernel can't serve a module."""
    if spec.adapters and not offer.adapters:
        return _WITHOUT_ADAPTERS
    if LOOKED_UP in spec.flags and not offer.looks_up:
        return _WITHOUT_ROWS
    return offer.supports(spec)


def _find_adapters(model: nn.Module) -> dict[int, list[Bindable]]:
    """By a module's identity, the slots for adapters of the layers below it, where there are any."""
    found: dict[int, list[Bindable]] = {}

    def visit(module: nn.Module) -> list[Bindable]:
        below = [slots for child in module.children() for slots in visit(child)]
        if below:
            found[id(module)] = below
        return [*below, module] if isinstance(module, Bindable) and module.op == ADAPTERS else below

    visit(model)
    return found


def find_uncapturable(module: nn.Module) -> frozenset[str]:
    """The ops of a bound model that are left to references which no device can capture."""
    found: frozenset[str] = frozenset()
    if isinstance(module, Bindable):
        if module.kernel is not None and not module.kernel.composite:
            return found
        if module.kernel is None and not module.capturable:
            found = frozenset((module.op,))
    return found.union(*(find_uncapturable(child) for child in module.children()))
