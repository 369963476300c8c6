"""Attention, and whole layers, that a family of transformers writes word for word as Llama: bound to lsv's.

q, k and v become one product, and where the platform has a kernel for a whole layer it serves these, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama

from lsv_models.generic.blocks import NORM, Flattened, read_body
from lsv_models.generic.interface import PASS, Probe, check_mask
from lsv_models.generic.layout import Layout
from lsv_models.generic.parallel import Plan
from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

if TYPE_CHECKING:
    from lsv_models.generic.body import Body

_PROJECTIONS = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
"""The linear layers, and how they are split over ranks if they are."""
_ROTATIONS = (llama.apply_rotary_pos_emb, neox.apply_rotary_pos_emb)
"""Of all features of a head, and of the first ones."""
_WINDOW = re.compile(r", sliding_window=(self\.sliding_window|getattr\(self\.config, 'sliding_window', None\))")
_NORMED = re.compile(r"self\.([qk])_norm\((self\.\1_proj\(hidden_states\)\.view\(hidden_shape\))\)")


@dataclass(frozen=True)
class Sizes:
    """``lsv_runtime.nn.attention.Sizes`` of one layer."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    windows: Sequence[int | None]


class OwnRope(Rope):
    """Rotates by the angles of the model's own module, in halves."""

    def __init__(self, w: Weights, angles: Any, head_dim: int, max_len: int) -> None:
        super().__init__(
            w,
            RopeConfig(
                kind="own", theta=1.0, head_dim=head_dim, rotary_dim=2 * len(angles.inv_freq), length=max_len,
                original_length=max_len, parameters={},
            ),
            max_len,
        )  # fmt: skip
        self._angles = (angles,)  # the model's module, not this one's

    def make_table(self) -> torch.Tensor:
        like = torch.empty(1, dtype=torch.float32, device=self.device)
        cos, sin = self._angles[0](like, torch.arange(self.max_len, device=self.device)[None])
        first, second = sin[0].chunk(2, dim=-1)
        return torch.cat((cos[0], -first, second), dim=-1).to(self.dtype)


class Bound(nn.Module):
    """Called like a module of transformers that attends: x [1, T, hidden] -> the same."""

    def __init__(self, inner: Bindable, attn: Attention, replaced: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.__dict__["attn"] = attn
        kept = {name: value for name, value in vars(replaced).items() if not name.startswith("_")}
        self.__dict__.update(kept)  # what its owner may ask: of which type it is, where it stands

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any = None, **call: Any) -> torch.Tensor:
        body: Body = self.__dict__[PASS]
        check_mask(body, attention_mask)
        if isinstance(body.attend, Probe):
            self.attn.layer = body.attend.place(self.attn.layer)
            return torch.empty_like(hidden_states)
        return self.inner(hidden_states[0], body.step)[None]  # type: ignore[no-any-return]


class BoundAttention(Bound):
    """Gives weights too, as transformers' do: none."""

    def forward(self, *args: Any, **call: Any) -> Any:
        return super().forward(*args, **call), None


def bind_attention(w: Weights, base: nn.Module, place: str, layout: Layout, plan: Plan, max_len: int) -> None:
    """Replace the attention of every layer of a body at ``place`` where it is Llama's, and the body's rotation too."""
    angles = getattr(base, "rotary_emb", None)
    if read_body(type(angles)) != read_body(llama.LlamaRotaryEmbedding):
        return
    ropes: dict[int, OwnRope] = {}
    for path, module in list(base.named_modules()):
        found = _read_attention(type(module))
        if found is None or not _is_stored(f"{place}.{path}", module, layout):
            continue
        dim = int(module.head_dim)
        rope = ropes.get(dim) or ropes.setdefault(dim, OwnRope(w, angles, dim, max_len))
        attn = _make_attention(w, f"{place}.{path}", module, plan, rope, *found)
        parent, _, name = path.rpartition(".")
        setattr(base.get_submodule(parent), name, BoundAttention(attn, attn, module))


def bind_layers(base: nn.Module) -> None:
    """Replace layers that are Llama's, if all their parts are bound."""
    for path, module in list(base.named_modules()):
        if read_body(type(module)) != read_body(llama.LlamaDecoderLayer):
            continue
        attn, mlp = module.self_attn, module.mlp
        norms = (module.input_layernorm, module.post_attention_layernorm)
        if isinstance(attn, BoundAttention) and isinstance(mlp, Flattened) and all(type(n) is RMSNorm for n in norms):
            parent, _, name = path.rpartition(".")
            layer = OwnLayer(*norms, attn.attn, mlp.inner)
            setattr(base.get_submodule(parent), name, Bound(layer, attn.attn, module))


class OwnLayer(LlamaLayer):
    """A Llama layer of parts that are there already."""

    def __init__(self, before_attn: RMSNorm, before_mlp: RMSNorm, attn: Attention, mlp: Bindable) -> None:
        Bindable.__init__(self)
        self.before_attn, self.before_mlp, self.attn, self.mlp = before_attn, before_mlp, attn, mlp
        self.multiplier = 1.0


def _read_attention(kind: type[nn.Module]) -> tuple[str, bool] | None:
    """Where attention that is Llama's has its window, and whether it norms queries and keys; None for any other."""
    text, expected = read_body(kind), read_body(llama.LlamaAttention)
    window = _WINDOW.search(text)
    plain, normed = _NORMED.subn(r"\2", _WINDOW.sub("", text))
    if plain != expected or normed not in (0, 2):
        return None
    module = sys.modules[kind.__module__]
    if read_body(module.rotate_half) != read_body(llama.rotate_half):
        return None
    if read_body(module.apply_rotary_pos_emb) not in map(read_body, _ROTATIONS):
        return None
    return window[1] if window else "", normed == 2


def _is_stored(path: str, module: nn.Module, layout: Layout) -> bool:
    """Whether checkpoints hold the weights as they are, and nothing else is in the way of binding."""
    parts: list[Any] = [module._modules.get(name) for name in _PROJECTIONS]
    if any(type(part) is not nn.Linear for part in parts) or not getattr(module, "is_causal", True):
        return False
    norms = [each for name in ("q_norm", "k_norm") if (each := module._modules.get(name)) is not None]
    fitting = all(read_body(type(norm)) == NORM and norm.weight.shape == (module.head_dim,) for norm in norms)
    one = len({norm.variance_epsilon for norm in norms}) < 2
    query, _, _, out = parts
    sizes = out.in_features == query.out_features and out.out_features == query.in_features
    return fitting and one and sizes and all(layout.is_plain(f"{path}.{name}") for name in module.state_dict())


def _make_attention(
    w: Weights, path: str, module: Any, plan: Plan, rope: OwnRope, window: str, normed: bool
) -> Attention:
    split = all(plan.style(f"{path}.{name}") == style for name, style in _PROJECTIONS.items())
    q, k, out = module.q_proj, module.k_proj, module.o_proj
    unbiased = [name for name in _PROJECTIONS if module.get_submodule(name).bias is None]
    owner = module if window.startswith("self") else module.config
    sizes = Sizes(
        hidden_size=q.in_features,
        heads=q.out_features // module.head_dim,
        kv_heads=k.out_features // module.head_dim,
        head_dim=module.head_dim,
        norm_eps=module.q_norm.variance_epsilon if normed else 0.0,
        windows=(getattr(owner, "sliding_window", None) if window else None,),
    )
    return Attention(
        Weights((w if split else w.replicated()).declaration, path), sizes, 0, rope, scale=float(module.scaling),
        qk_norm=normed, qkv_bias=not {"q_proj", "k_proj", "v_proj"} <= set(unbiased), unbiased=unbiased,
        out_bias=out.bias is not None,
    )  # fmt: skip
