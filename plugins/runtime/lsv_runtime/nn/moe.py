"""Mixture of experts: each token goes through the few experts its router chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_runtime import gates
from lsv_runtime.nn.exchange import TokenExchange
from lsv_runtime.nn.linear import Column, Row, plain_linear
from lsv_runtime.nn.mlp import GatedMLP, find_activation
from lsv_runtime.nn.routers import Router
from lsv_runtime.ops import Bindable, Kernel, MixingKernel, dtype_name
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.placement import Spread
from lsv_runtime.weights.quantizer import joint_format

MakeExpert = Callable[[Weights], nn.Module]


class RoutedAdapters(Protocol):
    """What adds to the results of experts where tokens of the step go through adapters."""

    rows: torch.Tensor | None
    """int64 [R]: those of the tokens that the expert which is computed is given."""

    @property
    def adds(self) -> bool:
        """Whether it adds anything in the step that runs."""
        ...

    def add_each(
        self, part: str, y: torch.Tensor, x: torch.Tensor, experts: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """To the results y [P, outputs] of the layer ``part`` of many experts, given x [P, inputs]: by the numbers of
        these and of the tokens, int [P].
        """
        ...


class MoE(Bindable):
    """x [T, hidden] -> [T, hidden]. Each expert is split over the ranks like a plain MLP; sums run in expert order.

    Where experts are ``spread`` a rank has ``len(experts)`` whole ones, and adds what these make of the tokens that
    chose them. Tokens are on every rank of a replica; those of other replicas are brought by ``gather``, and ``add_up``
    takes the results back. A kernel for that finds the experts in ``spread.table``, which may change between steps, and
    tells ``spread.count`` what was chosen; where replicas share them it is a ``MixingKernel``.

    ``names`` are gate, up and down of one expert, whose weights are at ``experts.<number>``; checkpoints that stack
    them are unfolded (``lsv_runtime.weights.stacks``). ``router`` and ``expert`` take the place of a softmax router at
    ``gate`` and of gated MLPs. How many tokens an expert gets depends on values, so no device can capture the
    reference.
    """

    op: ClassVar[str] = "moe"
    adapters: RoutedAdapters | None = None
    capturable: ClassVar[bool] = False
    spread: Spread | None = None
    exchange: TokenExchange | None = None
    """With the ranks of other replicas, where these share the experts."""

    def __init__(
        self,
        w: Weights,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        experts: int,
        top: int,
        normalise: bool = True,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        router: Router | None = None,
        expert: MakeExpert | None = None,
    ) -> None:
        super().__init__()

        def make(place: Weights) -> nn.Module:
            return GatedMLP(place, hidden_size, intermediate_size, activation, names=names, reduce=False)

        self.communicator = w.communicator
        self.width, self.dtype, self.device = hidden_size, w.dtype, w.device
        self.router = router or Router(w / "gate", hidden_size, experts, top, normalise=normalise)
        every = [(expert or make)(w.spread() / "experts" / number) for number in range(experts)]
        if w.declaration.placement is not None:
            placement = w.declaration.placement
            self.spread = Spread(placement.place(experts), placement.rank, w.device)
            every = [every[number] for number in self.spread.places]
        self.experts = nn.ModuleList(every)

    def spec(self) -> OpSpec:
        """With the flags that both linear layers of an expert have, and their groups."""
        expert: Any = self.experts[0]
        inner, linears = expert.spec(), [part.linear.spec() for part in (expert.gate_up, expert.down)]
        groups = {linear.shape.get("group", 0) for linear in linears}
        shape = {**inner.shape, "experts": len(self.experts), "top": self.router.top, "group": max(groups)}
        shared = linears[0].flags & linears[1].flags if len(groups) == 1 else frozenset()
        where = "" if self.spread is None else ".spread" if self.exchange is None else ".exchanged"
        return OpSpec(self.op + where, inner.dtype, inner.format, shape, inner.flags | shared)

    def use(self, kernel: Kernel) -> None:
        super().use(kernel)
        if self.adapters is not None and not kernel.adapts_parts:
            self.__dict__["forward"] = self._forward_beside

    def _forward_beside(self, x: torch.Tensor) -> torch.Tensor:
        """By the kernel, or expert by expert where adapters add to them."""
        assert self.adapters is not None
        assert self.kernel is not None
        return self.reference(x) if self.adapters.adds else self.kernel.forward(x)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, *self.router(x))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """What the chosen experts make of x [T, width], weighed: weights and ids [T, top] -> [T, width]."""
        x, weights, experts = self.gather(x, weights, experts)
        y = torch.zeros_like(x)
        if self.spread is not None:
            self.spread.count(experts)
        for number in experts.unique().tolist():  # type: ignore[no-untyped-call]
            place = number if self.spread is None else self.spread.places.get(number)
            if place is None:
                continue
            rows, places = (experts == number).nonzero(as_tuple=True)
            if self.adapters is not None:
                self.adapters.rows = rows
            y.index_add_(0, rows, self.compute(place, x[rows], weights[rows, places, None]))
        return self.add_up(y)

    def gather(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tokens that this rank's experts are to see, and what was chosen for them: as ``mix`` takes them."""
        if self.exchange is None or self.spread is None:
            return x, weights, experts
        return self.exchange.gather(x, weights, experts, self.spread.nobody)

    def add_up(self, y: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks' experts make of this replica's tokens, given what this rank's make of those that
        were gathered.
        """
        if self.exchange is not None:
            return self.exchange.add_up(y)
        return y if self.communicator is None else self.communicator.all_reduce(y)

    def join(self) -> None:
        """Compute what experts here make of other replicas' tokens, in a step in which this one has none."""
        x = torch.empty(0, self.width, dtype=self.dtype, device=self.device)
        experts = torch.empty(0, self.router.top, dtype=torch.int64, device=self.device)
        mix = self.kernel.mix if isinstance(self.kernel, MixingKernel) else self.mix
        mix(x, experts.to(x.dtype), experts)

    def compute(self, place: int, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What one of this rank's experts adds to its tokens: x [R, hidden] and weights [R, 1] -> [R, hidden]."""
        return self.experts[place](x) * weights  # type: ignore[no-any-return]


class WeighedInputMoE(MoE):
    """One whose weights are on what experts are given, not on what they answer (Llama 4)."""

    op: ClassVar[str] = "moe.weighed_input"

    def compute(self, place: int, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.experts[place](x * weights)  # type: ignore[no-any-return]


class PlainExpert(nn.Module):
    """One without a gate: ``down(activation(up(x)))``, x [T, width] -> [T, width]. The caller sums over the ranks."""

    def __init__(
        self,
        w: Weights,
        width: int,
        inner: int,
        activation: str,
        *,
        names: tuple[str, str] = ("up_proj", "down_proj"),
        bias: bool = False,
    ) -> None:
        super().__init__()
        share = w.shard.split(inner, "intermediate features")
        self.gate_up = Column.even(w, names[:1], width, inner, bias=bias)
        self.down = Row(w, names[1], inner, width, reads=share, bias=bias, reduce=False)
        self.name, self.activate = activation, find_activation(activation)

    def spec(self) -> OpSpec:
        up, down = self.gate_up.linear, self.down.linear
        shape = {"hidden": up.layer.inputs, "intermediate": down.layer.inputs}
        format = joint_format(up.format, down.format)
        return OpSpec("mlp", dtype_name(up.layer.dtype), format, shape, frozenset((self.name,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activate(self.gate_up(x)))  # type: ignore[no-any-return]


class PlainRouted(MoE):
    """Routed experts without gates."""

    op: ClassVar[str] = "moe.plain"


class SharedMoE(Bindable):
    """Routed experts, and one that all tokens go through: x [T, hidden] -> [T, hidden].

    ``gate`` is the place of a linear layer whose sigmoid the shared expert's answer is multiplied by (Qwen2-MoE).
    """

    op: ClassVar[str] = "moe.shared"

    def __init__(self, routed: MoE, shared: GatedMLP, gate: Weights | None = None) -> None:
        super().__init__()
        self.routed, self.shared = routed, shared
        self.gate = None if gate is None else plain_linear(gate, shared.gate_up.linear.layer.inputs, 1)

    def spec(self) -> OpSpec:
        routed, shared = self.routed.spec(), self.shared.spec()
        flags = routed.flags | {f"shared.{flag}" for flag in shared.flags} | ({"gated"} if self.gate else set())
        flags |= set() if self.routed.spread is None else {"spread"}
        return OpSpec(self.op, routed.dtype, f"{routed.format}+{shared.format}", dict(routed.shape), frozenset(flags))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        shared = self.shared(x)
        if self.gate is not None:
            shared = gates.sigmoid(self.gate(x)) * shared
        return self.routed(x) + shared  # type: ignore[no-any-return]
