"""Parts of transformers models that most families write alike: bound to lsv's ops where they are the very same."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from lsv_models.generic.experts import ACTIVATIONS
from lsv_models.generic.layout import Layout
from lsv_models.generic.parallel import Plan
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.place import Weights

_PARTS = ("gate_proj", "up_proj", "down_proj")
_STYLES = ["colwise", "colwise", "rowwise"]
_PRODUCT = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
_MLPS = (f"return {_PRODUCT}", f"down_proj = {_PRODUCT}\nreturn down_proj")
NORM = """
input_dtype = hidden_states.dtype
hidden_states = hidden_states.to(torch.float32)
variance = hidden_states.pow(2).mean(-1, keepdim=True)
hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
return self.weight * hidden_states.to(input_dtype)
""".strip()
"""The forward of RMS norms."""


class Flattened(nn.Module):
    """Called like a block of transformers, with tokens in any axes: x [..., hidden] -> the same."""

    def __init__(self, inner: GatedMLP) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            return torch.empty_like(x)
        return self.inner(x.reshape(-1, x.shape[-1])).view(x.shape)  # type: ignore[no-any-return]


def bind_blocks(w: Weights, lm: PreTrainedModel, layout: Layout, plan: Plan) -> None:
    """Replace gated MLPs and RMS norms whose forward is word for word that of most families."""
    for path, module in list(lm.named_modules()):
        made: nn.Module | None = None
        if read_body(type(module)) in _MLPS:
            made = _make_mlp(w, path, module, layout, plan)
        elif read_body(type(module)) == NORM:
            made = _make_norm(w, path, module, layout)
        if made is not None:
            parent, _, name = path.rpartition(".")
            setattr(lm.get_submodule(parent), name, made)


@cache
def read_body(code: Any) -> str:
    """What a function of transformers does, or the forward of a class of modules, without its signature and comments.

    Empty for what is not transformers' own.
    """
    if not code.__module__.startswith("transformers."):
        return ""
    source = inspect.getsource(code.forward if isinstance(code, type) else code)
    function: Any = ast.parse(textwrap.dedent(source)).body[0]
    texts = [ast.unparse(statement) for statement in function.body if not _is_text(statement)]
    return "\n".join(texts)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _make_mlp(w: Weights, path: str, module: nn.Module, layout: Layout, plan: Plan) -> nn.Module | None:
    parts: list[Any] = [module._modules.get(name) for name in _PARTS]
    activation = getattr(getattr(module, "config", None), "hidden_act", None)
    if any(type(part) is not nn.Linear or not layout.is_plain(f"{path}.{name}.weight")
           for name, part in zip(_PARTS, parts, strict=True)):  # fmt: skip
        return None
    known = activation in ACTIVATIONS and repr(ACT2FN[activation]) == repr(module.act_fn)
    biased = {part.bias is not None for part in parts}
    gate, _, down = parts
    if not known or len(biased) > 1 or down.out_features != gate.in_features:
        return None
    split = [plan.style(f"{path}.{name}") for name in _PARTS] == _STYLES
    place = Weights((w if split else w.replicated()).declaration, path)
    return Flattened(GatedMLP(place, gate.in_features, gate.out_features, activation, bias=biased.pop()))


def _make_norm(w: Weights, path: str, module: Any, layout: Layout) -> nn.Module | None:
    if set(module._parameters) != {"weight"} or module.weight.dtype != w.dtype or not layout.is_plain(f"{path}.weight"):
        return None
    return RMSNorm(Weights(w.replicated().declaration, path), len(module.weight), module.variance_epsilon)
