"""The op table: modules name the op they are, platforms offer kernels for it, and core binds them once, at load.

Every ``Bindable`` module carries its own plain-torch ``reference``; a kernel that is bound takes the place of its
``forward``. Modules are offered outermost first, so a kernel for a whole layer is asked before one for a linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from lsv.config import BoundOp
from lsv.offers import KernelOffer, OpSpec


class Kernel(Protocol):
    """An implementation of one module, made by ``load(module, spec)`` while its weights are still on meta.

    A kernel may also have ``pack() -> None``, called each time the weights of the module (and of all modules
    below it) have been filled: it takes them with ``module.release(name)`` and keeps its own layout with
    ``module.keep(name, tensor)``, so that filling again writes to the same storage.

    A kernel that calls the modules below it instead of taking their weights says ``composite = True``: they are offered
    to kernels of their own.
    """

    def forward(self, *args: Any) -> torch.Tensor:
        """The module's ``reference``, argument by argument."""
        ...


LoadKernel = Callable[["Bindable", OpSpec], Kernel]


class Bindable(nn.Module):
    """A module a kernel may stand in for. ``row_invariant`` says whether the reference obeys the row rule.

    ``capturable`` says whether a device can capture it: no shape in it depends on values.
    """

    op: ClassVar[str]
    row_invariant: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    kernel: Kernel | None = None

    def spec(self) -> OpSpec:
        """What this module asks of a kernel."""
        raise NotImplementedError

    def reference(self, *args: Any) -> torch.Tensor:
        """The op in plain torch."""
        raise NotImplementedError

    def forward(self, *args: Any) -> torch.Tensor:
        return self.reference(*args)

    def filled(self) -> None:
        """Called when all weights here and below have been filled, before a kernel packs them.

        Weights may be replaced here, e.g. quantised: see ``release`` and ``keep``.
        """

    def use(self, kernel: Kernel) -> None:
        """Let ``kernel`` stand in for the reference; past ``__dict__``, or a kernel that is a module became a child."""
        self.__dict__["kernel"] = kernel
        self.__dict__["forward"] = kernel.forward

    def pack(self) -> None:
        """Let the bound kernel, if there is one and it wants to, pack the weights."""
        pack = getattr(self.kernel, "pack", None)
        if pack is not None:
            pack()

    def release(self, name: str) -> torch.Tensor:
        """Hand out parameter or buffer ``name`` and leave one on meta in its place: the caller holds the only copy.

        A tied weight stays alive in the module it is tied to.
        """
        held = self._buffers.get(name)
        if held is not None:
            self._buffers[name] = held.to("meta")
            return held
        tensor = self.get_parameter(name).detach()
        setattr(self, name, nn.Parameter(tensor.to("meta"), requires_grad=False))
        return tensor

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Keep ``tensor`` as buffer ``name``, written into the storage it has if that is of the same form."""
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
            return not getattr(kernel, "composite", False)
        refusals.append(f"{offer.load}: {refusal}")
    why = "; ".join(refusals) or "no kernel offered"
    lines[BoundOp(spec.op, "reference", 0, why, module.row_invariant)] += 1
    return False


def find_uncapturable(module: nn.Module) -> frozenset[str]:
    """The ops of a bound model that are left to references which no device can capture."""
    found: frozenset[str] = frozenset()
    if isinstance(module, Bindable):
        if module.kernel is not None and not getattr(module.kernel, "composite", False):
            return found
        if module.kernel is None and not module.capturable:
            found = frozenset((module.op,))
    return found.union(*(find_uncapturable(child) for child in module.children()))
