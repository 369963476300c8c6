"""Experts of a transformers model: bound to lsv's op where their form is known, else run by the model's own code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.moe import _default_apply_gate

from lsv.nn.mlp import GatedMLP
from lsv.nn.moe import MoE
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv_models.generic.layout import Layout

_STORED = re.compile(r"(?P<place>.+)\.(?P<number>\d+)\.(?P<name>[^.]+)\.weight")


class Chosen(nn.Module):
    """Stands for the router of a block whose own code has chosen the experts before it calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.top = 1
        self.choice: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.choice is not None, "experts are called with a choice"
        return self.choice


class ChosenMoE(MoE):
    """The experts of a block, which does the rest itself."""

    def __init__(self, w: Weights, experts: nn.ModuleList) -> None:
        Bindable.__init__(self)
        self.communicator = w.communicator
        self.router = Chosen()  # type: ignore[assignment]
        self.experts = experts


class Experts(nn.Module):
    """Called like transformers' experts: x [..., hidden], expert ids and weights, both [T, top]."""

    def __init__(self, moe: ChosenMoE) -> None:
        super().__init__()
        self.moe = moe

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        router: Any = self.moe.router
        if x.is_meta:
            router.top = ids.shape[-1]
            return torch.empty_like(x)
        router.choice = weights.to(x.dtype), ids.to(torch.int64)
        try:
            return self.moe(x.reshape(-1, x.shape[-1])).reshape(x.shape)  # type: ignore[no-any-return]
        finally:
            router.choice = None


def bind_experts(w: Weights, lm: PreTrainedModel, layout: Layout) -> None:
    """Replace experts that are stored one by one and compute ``down(act(gate(x)) * up(x))``."""
    for path, module in list(lm.named_modules()):
        names = _stored_names(path, module, layout)
        activation = getattr(getattr(module, "config", None), "hidden_act", None)
        if names is None or activation not in ("silu", "swish", "gelu", "gelu_pytorch_tanh"):
            continue
        place, *parts = names
        count, hidden, inner = module.down_proj.shape
        experts = nn.ModuleList(
            GatedMLP(Weights(w.declaration, place) / number, hidden, inner, activation, names=tuple(parts), reduce=False)
            for number in range(count)
        )
        parent, _, name = path.rpartition(".")
        setattr(lm.get_submodule(parent), name, Experts(ChosenMoE(w, experts)))


def _stored_names(path: str, module: nn.Module, layout: Layout) -> tuple[str, str, str, str] | None:
    """Where experts are stored and the names of gate, up and down there; None for those of another form."""
    plain = getattr(module, "has_gate", False) and getattr(module, "is_concatenated", False)
    others = any(getattr(module, flag, True) for flag in ("has_bias", "is_transposed", "has_post_expert_norm"))
    if not plain or others or getattr(type(module), "_apply_gate", None) is not _default_apply_gate:
        return None
    if {name for name, _ in module.named_parameters()} != {"gate_up_proj", "down_proj"}:
        return None
    both, down = layout.pieces(f"{path}.gate_up_proj"), layout.pieces(f"{path}.down_proj")
    places = [_STORED.fullmatch(piece.name) for piece in (*both[:2], *down[:1])]
    if len(both) != 2 * len(down) or None in places or _count_places(places) != 1:
        return None
    gate, up, last = (place["name"] for place in places if place is not None)
    return str(places[0]["place"]), gate, up, last  # type: ignore[index]


def _count_places(found: list[re.Match[str] | None]) -> int:
    return len({one["place"] for one in found if one is not None})


@contextlib.contextmanager
def skipped(lm: nn.Module) -> Iterator[None]:
    """While a pass runs on meta, experts that run by the model's own code give what they get: which of them is asked
    depends on values.
    """
    modules = [module for module in lm.modules() if type(module).__name__.endswith("Experts") and not _is_ours(module)]
    for module in modules:
        module.forward = _give_back
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, Experts)


def _give_back(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.empty_like(x)


