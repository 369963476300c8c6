"""Zaya: attention whose queries and keys are convolved and whose values are half a token late, and one expert a token.

Routers see what the router of the layer before has seen: it goes along beside the residual stream, so x is
[T, hidden + router size] of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import read_kinds
from lsv_models.recurrent.stack import ModelTyped, Stack
from lsv_runtime import products
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.recurrent.states import RowStates, StateCache
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.nn.recurrent.wkv import TokenShift
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.routers import Router
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Part, Weights

KINDS = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
_ROPES = {"hybrid": 5e6, "hybrid_sliding": 1e4}
_ALPHA = 0.5
"""The share of a head that is rotated, where config.json does not say."""


class TwoConvs(nn.Module):
    """Each channel over its last tokens, and then each head over its: x [T, channels] -> [T, channels]."""

    def __init__(self, w: Weights, heads: int, dim: int, widths: tuple[int, int]) -> None:
        super().__init__()
        self.heads, channels = heads, heads * dim
        shapes = (("conv_qk_depthwise", (channels, 1, widths[0])), ("conv_qk_grouped", (channels, dim, widths[1])))
        self.weights = nn.ParameterList((w / name).take("weight", shape) for name, shape in shapes)
        self.biases = nn.ParameterList((w / name).take("bias", (channels,)) for name, _ in shapes)
        self.part = StatePart("conv", (sum(widths) - 2, channels), w.dtype)

    def forward(self, x: torch.Tensor, states: RowStates) -> torch.Tensor:
        return states.advance(self.part.name, self._convolve, x)

    def _convolve(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.cat((state, x), dim=1)
        y = products.convolve(seen.mT, self.weights[0], self.biases[0], groups=seen.shape[-1])
        y = products.convolve(y, self.weights[1], self.biases[1], groups=self.heads)
        return y.mT, seen[:, x.shape[1] :]


class ConvolvedAttention(Attention):
    """x [T, hidden] -> [T, hidden]. Half of the value features are those of the token before."""

    variation: ClassVar[str] = "convolved"

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, widths: tuple[int, int]) -> None:
        Bindable.__init__(self)
        heads, inner, place = Heads(w, c), c.kv_heads * c.head_dim, w / "qkv_proj"
        self.sizes = {"q_proj": c.heads * c.head_dim, "k_proj": inner, "v_proj_current": inner // 2}
        self.sizes["v_proj_delayed"] = inner // 2
        self.qkv = Column(place, [Part(name, size, 0, size) for name, size in self.sizes.items()], c.hidden_size)
        self.convs = TwoConvs(place, c.heads + c.kv_heads, c.head_dim, widths)
        self.shift = TokenShift(w, inner // 2, "value")
        self.cache = StateCache(w, 2 * layer + 1, (self.convs.part, self.shift.part))
        self.warmth = (w / "qk_norm").take("temp", (c.kv_heads,))
        self.out, self.rope, self.q_norm, self.k_norm = heads.out(w, bias=False), rope, None, None
        self.layer = heads.layer(2 * layer, window=c.windows[layer])
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer, states = self.layer, self.cache.of(step)
        q, k, now, late = self.qkv(x).split(tuple(self.sizes.values()), dim=-1)
        v = torch.cat((now, self.shift(late, states)), dim=-1).view(-1, self.kv_heads, self.head_dim)
        qk = self.convs(torch.cat((q, k), dim=-1), states).view(len(x), -1, self.head_dim)
        qk = self.rotate(self.normalise(qk + self._means(q, k)), step)
        attended = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.project(attended, x)

    def _means(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """The mean of each query and its key, and of all these for each key: [T, heads + kv_heads, head_dim]."""
        q = q.view(len(q), self.kv_heads, -1, self.head_dim)
        both = (q + k.view(len(k), self.kv_heads, 1, self.head_dim)) * 0.5
        return torch.cat((both.flatten(1, 2), both.mean(2)), dim=1)

    def normalise(self, qk: torch.Tensor) -> torch.Tensor:
        """To the length of ``head_dim ** 0.5``, keys times a number of each head."""
        least = torch.finfo(qk.dtype).eps
        qk = qk * (self.head_dim**0.5 / qk.norm(dim=-1, keepdim=True).clamp_min(least))
        return torch.cat((qk[:, : self.heads], qk[:, self.heads :] * self.warmth[:, None]), dim=1)


class CarryingRouter(Router):
    """An MLP over a narrow vector, to which that of the layer before is added; its last class is no expert at all."""

    def __init__(self, w: Weights, hidden: int, size: int, experts: int, eps: float, *, first: bool) -> None:
        nn.Module.__init__(self)
        alone = w.replicated()
        self.narrow = Column.even(alone, ("down_proj",), hidden, size, bias=True)
        self.scale = None if first else w.take("router_states_scale", (size,))
        place = alone / "router_mlp"
        self.norm = RMSNorm(place / "norm", size, eps)
        self.first, self.second = (Column.even(place, (name,), size, size, bias=True) for name in ("fc1", "fc2"))
        self.last = Column.even(place, ("out_proj",), size, experts + 1)
        self.balance = take_float(w, "balancing_biases", experts + 1)
        self.top, self.experts = 1, experts

    def route(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, hidden] and the vectors of the layer before [T, size] -> weights and ids [T, 1], and own vectors."""
        own = self.narrow(x)
        if self.scale is not None:
            own = own + before.to(own.dtype) * self.scale
        y = functional.gelu(self.second(functional.gelu(self.first(self.norm(own)))))
        shares = torch.softmax(self.last(y), dim=-1)
        chosen = (shares.float() + self.balance).argmax(dim=-1, keepdim=True)
        none = chosen == self.experts
        return shares.gather(1, chosen).masked_fill(none, 0), chosen.masked_fill(none, 0), own


class CarryingMoE(MoE):
    """One whose router is given more than x."""

    op = "moe.carrying"


class Scaling(nn.Module):
    """The residual and what is added to it, each with a bias and then a factor for every feature."""

    def __init__(self, w: Weights, size: int) -> None:
        super().__init__()
        names = ("hidden_states_bias", "hidden_states_scale", "residual_bias", "residual_scale")
        self.numbers = nn.ParameterList(w.take(name, (size,)) for name in names)

    def forward(self, added: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        bias, scale, own_bias, own_scale = self.numbers
        return (added + bias) * scale + (residual + own_bias) * own_scale


class ZayaLayer(nn.Module):
    """x [T, hidden + router size] of float32 -> the same."""

    def __init__(self, w: Weights, c: DecoderConfig, attn: ConvolvedAttention, moe: CarryingMoE) -> None:
        super().__init__()
        self.before_attn = ModelTyped(RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps))
        self.before_mlp = ModelTyped(RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps))
        self.after_attn, self.after_mlp = (
            Scaling(w / f"post_{part}_residual_scale", c.hidden_size) for part in ("attention", "mlp")
        )
        self.attn, self.moe, self.hidden = attn, moe, c.hidden_size

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x, before = x[:, : self.hidden], x[:, self.hidden :]
        x = self.after_attn(self.attn(self.before_attn(x), step), x)
        given = self.before_mlp(x)
        weights, experts, own = self.moe.router.route(given, before)
        x = self.after_mlp(self.moe.mix(given, weights, experts), x)
        return torch.cat((x, own.float()), dim=-1)


class Carrying(nn.Module):
    """An embedding, shifted and scaled, and room for the vectors of routers."""

    def __init__(self, w: Weights, embed: nn.Module, hidden: int, size: int) -> None:
        super().__init__()
        self.embed, self.size = embed, size
        self.bias, self.scale = (w.take(f"input_hidden_states_{name}", (hidden,)) for name in ("bias", "scale"))

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x = (self.embed(ids, step) + self.bias) * self.scale
        return functional.pad(x.float(), (0, self.size))


class Begin(nn.Module):
    """A norm of the first features of what it is given."""

    def __init__(self, norm: nn.Module, hidden: int) -> None:
        super().__init__()
        self.norm, self.hidden = norm, hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x[:, : self.hidden])  # type: ignore[no-any-return]


class Zaya(Stack):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(_with_common_kinds(config))
        c = DecoderConfig.read(keys, norm_eps=1e-5, windows=True, rotary_fraction=1.0)
        keys.agree("num_experts_per_tok", 1)
        keys.agree("lm_head_bias", False)
        keys.agree("attention_bias", False)
        experts, inner = keys.count("num_experts", 16), keys.count("moe_intermediate_size", 2048)
        size, widths = keys.count("router_hidden_size", 256), (keys.count("cca_time0", 2), keys.count("cca_time1", 2))
        keys.finish("Zaya")
        rope = Rope(w, c.rope, max_len)
        local = rope if c.local_rope == c.rope else Rope(w, c.local_rope, max_len)

        def layer(i: int) -> ZayaLayer:
            place, hidden = w / "model" / "layers" / i, c.hidden_size
            attn = ConvolvedAttention(place / "self_attn", c, i, local if c.windows[i] else rope, widths)
            router = CarryingRouter(place / "mlp" / "gate", hidden, size, experts, c.norm_eps, first=i == 0)
            moe = CarryingMoE(place / "mlp", hidden, inner, c.activation, experts=experts, top=1, router=router)
            return ZayaLayer(place, c, attn, moe)

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
        )  # fmt: skip
        self.embed = Carrying(w / "model", self.embed, c.hidden_size, size)
        self.norm = Begin(self.norm, c.hidden_size)
        self.stream = (c.hidden_size + size, torch.float32)


def _with_common_kinds(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with the common names of kinds of layers, and the rope of each."""
    layers = Keys(config).layers("num_hidden_layers")
    kinds = read_kinds(config, ("layer_types",), layers, KINDS) or ["full_attention"] * layers
    given = config.get("rope_parameters") or {}
    ropes = {
        own: given.get(theirs)
        or {"rope_type": "default", "rope_theta": _ROPES[theirs], "partial_rotary_factor": _ALPHA}
        for theirs, own in KINDS.items()
        if own in kinds
    }
    window = config.get("sliding_window") if "sliding_attention" in kinds else None
    if "sliding_attention" in kinds and window is None:
        raise CheckpointError("config.json: layers of kind hybrid_sliding need a sliding_window")
    return {
        "tie_word_embeddings": True, "intermediate_size": 1, **config, "layer_types": kinds, "sliding_window": window,
        "rope_parameters": ropes if window is not None else ropes["full_attention"],
    }  # fmt: skip
