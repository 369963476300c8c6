"""Experts of a transformers model: bound to lsv's op where their form is known, else run by the model's own code."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import _config as assumed
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.integrations.moe import _default_apply_gate

from lsv_models.generic.layout import Layout
from lsv_models.generic.refusal import Refused
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Piece, Weights
from lsv_runtime.weights.quantizer import Linear

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh")
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
    """Replace experts that compute ``down(act(gate(x)) * up(x))``, stored one by one or stacked."""
    for path, module in list(lm.named_modules()):
        activation = getattr(getattr(module, "config", None), "hidden_act", None)
        if not _is_gated(module) or activation not in ACTIVATIONS:
            continue
        names, first = _stored_names(path, layout), len(w.declaration.slots)
        place, *parts = names or (path, "gate_proj", "up_proj", "down_proj")
        count, hidden, inner = module.down_proj.shape
        experts = nn.ModuleList(
            GatedMLP(
                Weights(w.declaration, place) / number, hidden, inner, activation, names=tuple(parts), reduce=False
            )
            for number in range(count)
        )
        if names is None:
            _read_from_stack(w, path, layout, first)
        parent, _, name = path.rpartition(".")
        setattr(lm.get_submodule(parent), name, Experts(ChosenMoE(w, experts)))


def _is_gated(module: nn.Module) -> bool:
    """Whether experts are of the form that transformers' own decorator calls the plain one."""
    plain = getattr(module, "has_gate", False) and getattr(module, "is_concatenated", False)
    others = any(getattr(module, flag, True) for flag in ("has_bias", "is_transposed", "has_post_expert_norm"))
    if not plain or others or getattr(type(module), "_apply_gate", None) is not _default_apply_gate:
        return False
    return {name for name, _ in module.named_parameters()} == {"gate_up_proj", "down_proj"}


def _stored_names(path: str, layout: Layout) -> tuple[str, str, str, str] | None:
    """Where experts are stored and the names of gate, up and down there; None where they are stacked."""
    both, down = layout.pieces(f"{path}.gate_up_proj"), layout.pieces(f"{path}.down_proj")
    found = [_STORED.fullmatch(piece.name) for piece in (*both[:2], *down[:1])]
    known = [one for one in found if one is not None]
    if len(both) != 2 * len(down) or len(known) < len(found) or len({one["place"] for one in known}) > 1:
        return None
    gate, up, last = (one["name"] for one in known)
    return known[0]["place"], gate, up, last


def _read_from_stack(w: Weights, path: str, layout: Layout, first: int) -> None:
    """Have the slots from ``first`` on, which name experts one by one, filled from tensors that stack them."""
    stacks = {name: layout.pieces(f"{path}.{name}")[0] for name in ("gate_up_proj", "down_proj")}
    if any(stack.name.rpartition(".")[0] == "" or stack.index is not None for stack in stacks.values()):
        raise Refused(f"checkpoints hold {path} in a form that is not known")
    for number, slot in enumerate(w.declaration.slots[first:], first):
        pieces = tuple(_cut(piece, path, stacks) for piece in slot.pieces)
        w.declaration.slots[number] = dataclasses.replace(slot, pieces=pieces)


def _cut(piece: Piece, path: str, stacks: Mapping[str, Piece]) -> Piece:
    """The same weights as a piece of the tensor that stacks those of all experts."""
    expert, name, suffix = piece.name.removeprefix(f"{path}.").split(".", 2)
    if suffix != "weight":
        raise Refused(f"its experts are stacked, and how a checkpoint would stack their {suffix} is not known")
    stack = stacks["down_proj" if name == "down_proj" else "gate_up_proj"]
    rows, columns = piece.source
    step, up = stack.source[1].step or 1, name == "up_proj"  # rows of gate and up may come in turns
    shift = int(up) * (piece.shape[0] if step == 1 else 1)
    source = slice(rows.start * step + shift, (rows.stop - 1) * step + shift + 1, step)
    return dataclasses.replace(piece, name=stack.name, shape=stack.shape, source=(source, columns), of=int(expert))


@contextlib.contextmanager
def skipped(lm: nn.Module) -> Iterator[None]:
    """While a pass runs on meta, experts that run by the model's own code give what they get: which of them is asked
    depends on values. What else is chosen by values is taken to choose all. Linear layers only say how wide they are:
    weights that are quantised while loading have no form yet. Raises ``Refused`` where a module does not call one of
    its own: code that reads its weight instead would read what a kernel or a weight format has made of it.
    """
    modules = [module for module in lm.modules() if type(module).__name__.endswith("Experts") and not _is_ours(module)]
    linears = [module for module in lm.modules() if isinstance(module, Linear)]
    called: set[int] = set()
    owners = [module for module in lm.modules() if any(isinstance(part, Linear) for part in module.children())]
    hooks = [owner.register_forward_pre_hook(lambda owner, given: called.add(id(owner))) for owner in owners]
    for module in modules:
        module.forward = partial(_give_back, module)
    for linear in linears:
        linear.forward = partial(_widen, linear, called)  # type: ignore[method-assign]
    try:
        with assumed.patch(meta_nonzero_assume_all_nonzero=True), _Uncounted():
            yield
        for part in (part for owner in owners if id(owner) in called for part in owner.children()):
            if isinstance(part, Linear) and id(part) not in called:
                raise Refused(f"its code reads the weight of {part.layer.name} without calling the layer")
    finally:
        for hook in hooks:
            hook.remove()
        for module in (*modules, *linears):
            del module.forward


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, Experts)


def _widen(linear: Linear, called: set[int], x: torch.Tensor) -> torch.Tensor:
    called.add(id(linear))
    return x.new_empty(*x.shape[:-1], linear.layer.width)


def _give_back(experts: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As many features as come in, but where experts are one matrix each [experts, outputs, inputs]."""
    weight = experts._parameters.get("weight")
    return x.new_empty(*x.shape[:-1], x.shape[-1] if weight is None else weight.shape[1])


class _Uncounted(TorchFunctionMode):
    """Within it a tensor on meta is a list of zeros: of how many tokens go to each expert, which skipped ones ask."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist and args[0].is_meta:
            return torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu").tolist()
        return func(*args, **(kwargs or {}))
