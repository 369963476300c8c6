"""Gemma 4, the text models: heads of two sizes, keys that are values too, layers that read earlier layers' keys and
values, an input for every layer, experts beside the dense block; a checkpoint has some of these.

Source: transformers' ``Gemma4TextModel`` and ``Gemma4UnifiedTextModel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.gemma.sharing import LayerInput, LayerInputs, attention_of, bare_names, find_sources, unused_names
from lsv_models.rms.blocks import SandwichLayer
from lsv_models.sparse.decoder import STACKED
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.embed import Embed, ScaledEmbed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.nn.routers import Router
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Part, Weights

_ROPES = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
"""Those of a file that names none."""
_MOST = 1 << 20
"""Far more than any size of a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """The numbers of Gemma 4 beside those of every decoder."""

    dims: tuple[int, ...] = ()
    """The size of a head in each layer."""
    kv_counts: tuple[int, ...] = ()
    """The heads of keys and values in each layer."""
    keys_are_values: bool = False
    """Whether layers without a window make values of what keys are made of."""
    input_size: int = 0
    """Numbers of a layer's input; 0 where layers have none."""
    input_rows: int = 0
    sources: tuple[int | None, ...] = ()
    """For each layer the one whose keys and values it reads; None where it has its own."""
    wide: bool = False
    """Whether layers that read others' have twice the inner features."""
    experts: int = 0
    """0 for the dense block alone."""
    top: int = 0
    expert_size: int = 0


class AheadRouter(Router):
    """Chooses by what the dense block is given before its norm, while experts are given that behind a norm of their
    own: ``look`` comes before the experts, and they get what it chose.
    """

    def __init__(self, w: Weights, hidden_size: int, experts: int, top: int, eps: float) -> None:
        super().__init__(w / "proj", hidden_size, experts, top, normalise=True)
        self.scale = w.take("scale", (hidden_size,))
        self.shares = w.take("per_expert_scale", (experts,))
        self.eps, self.chosen = eps, (torch.empty(0), torch.empty(0))

    def look(self, x: torch.Tensor) -> None:
        """Choose for the tokens x [T, hidden]."""
        normed = functional.rms_norm(x.float(), x.shape[-1:], eps=self.eps).type_as(x)
        self.chosen = super().forward(normed * self.scale * x.shape[-1] ** -0.5)

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = super().choose(logits)
        return weights * self.shares.float()[experts], experts

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.chosen


class BesideExperts(nn.Module):
    """The experts beside a dense block, and the norms around both."""

    def __init__(self, w: Weights, c: Gemma4Config) -> None:
        super().__init__()

        def norm(name: str) -> RMSNorm:
            return RMSNorm(w / name, c.hidden_size, c.norm_eps)

        self.router = AheadRouter(w / "router", c.hidden_size, c.experts, c.top, c.norm_eps)
        self.routed = MoE(
            w, c.hidden_size, c.expert_size, c.activation, experts=c.experts, top=c.top, router=self.router
        )
        self.after_dense = norm("post_feedforward_layernorm_1")
        self.before = norm("pre_feedforward_layernorm_2")
        self.after = norm("post_feedforward_layernorm_2")

    def forward(self, x: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """The layer's x [T, hidden], and what the dense block made of it -> what both make of it."""
        self.router.look(x)
        return self.after_dense(dense) + self.after(self.routed(self.before(x)))  # type: ignore[no-any-return]


def _queries_and_keys(heads: Heads) -> list[Part]:
    return [heads.part("q_proj"), heads.part("k_proj")]


class Gemma4Layer(SandwichLayer):
    """[T, hidden + inputs of this and the following layers] -> the same without this layer's input."""

    qk_norm = True

    def __init__(self, w: Weights, c: Gemma4Config, layer: int, rope: Rope | None) -> None:
        super().__init__(w, c, layer, rope)
        self.experts = BesideExperts(w, c) if c.experts else None
        self.sizes = (c.hidden_size, c.input_size)
        given = (c.hidden_size, c.input_size, c.activation, c.norm_eps)
        self.input = LayerInput(w, *given) if c.input_size else None
        self.scalar = w.take("layer_scalar", (1,))

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> Attention:
        assert isinstance(c, Gemma4Config)
        kind, given = attention_of(c.sources[layer])
        if c.keys_are_values and c.windows[layer] is None and c.sources[layer] is None:
            given = {**given, "fused": _queries_and_keys}
        return super().make_attention(w, c, layer, rope, kind, **given, **more)

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        hidden, size = self.sizes
        given, later = x[:, hidden : hidden + size], x[:, hidden + size :]
        x = super().reference(x[:, :hidden], step) if self.experts is None else self._mix(x[:, :hidden], step)
        if self.input is not None:
            x = x + self.input(x, given)
        x = x * self.scalar
        return torch.cat((x, later), dim=1) if self.input is not None else x

    def _mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The block with experts: x [T, hidden] -> [T, hidden]."""
        assert self.experts is not None
        x = x + self.after_attn(self.attn(self.before_attn(x), step))
        both = self.experts(x, self.mlp(self.before_mlp(x)))
        return x + self.after_mlp(both)  # type: ignore[no-any-return]


def _read_heads(keys: Keys, c: DecoderConfig, windows: Sequence[int | None], tied: bool) -> tuple[tuple[int, int], ...]:
    """The size of a head and the heads of keys and values in each layer, as published files or transformers say."""
    full = {"head_dim": keys.count("global_head_dim", 512)}
    kv_heads = keys.maybe("num_global_key_value_heads", int)
    full |= {"num_key_value_heads": kv_heads} if kv_heads is not None and tied else {}
    given = keys.maybe("per_layer_config", dict)
    if given is None:
        given = {str(layer): full for layer, window in enumerate(windows) if window is None}
    usual = {"head_dim": c.head_dim, "num_key_value_heads": c.kv_heads}
    sizes = [{**usual, **_own(given.get(str(layer), {}))} for layer in range(c.layers)]
    for layer, size in enumerate(sizes):
        good = set(size) == set(usual) and all(type(one) is int and 0 < one <= _MOST for one in size.values())
        if not good or c.heads % size["num_key_value_heads"]:
            raise CheckpointError(
                f"config.json: layer {layer} must have a positive head_dim and num_key_value_heads that divides "
                f"{c.heads}, and nothing else of its own, got {size!r:.200}"
            )
    return tuple((size["head_dim"], size["num_key_value_heads"]) for size in sizes)


def _own(given: object) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {"per_layer_config": given}


def _read_experts(keys: Keys) -> dict[str, int]:
    if not keys.take("enable_moe_block", bool, False):
        keys.skip("num_experts", "top_k_experts", "moe_intermediate_size")
        return {}
    names = {"experts": "num_experts", "top": "top_k_experts", "expert_size": "moe_intermediate_size"}
    return {name: keys.count(key) for name, key in names.items()}


def _resized(rope: RopeConfig, dim: int) -> RopeConfig:
    """The same rule for heads of another size."""
    return replace(rope, head_dim=dim, rotary_dim=rope.rotary_dim * dim // rope.head_dim)


class Gemma4(DenseDecoder):
    prefixes = bare_names()
    layer = Gemma4Layer
    stacks = STACKED
    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "tied": True, "full_every": 6, "rotary_fraction": 1.0,
        "rope_theta": 1e6, "local_theta": 10000.0,
        "activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    keys: ClassVar[Mapping[str, str]] = {"hidden_act": "hidden_activation"}
    input_size: ClassVar[int] = 256
    """That of files that don't say."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        if config.get("rope_parameters") is None:
            config = {**config, "rope_parameters": _ROPES}
        super().__init__(w, config, max_len)
        c, place = self.c, w / "model"
        self.ignores = (*self.ignores, *unused_names(c.sources))
        self.staged = not c.input_size and not any(source is not None for source in c.sources)
        if c.input_size:
            assert isinstance(self.embed, Embed | ScaledEmbed)
            sizes = (c.hidden_size, c.layers)
            self.embed: Any = LayerInputs(place, self.embed, sizes, c.input_rows, c.input_size, c.norm_eps)

    def read(self, keys: Keys) -> DecoderConfig:
        keys.count("sliding_window")
        if keys.maybe("use_bidirectional_attention", object) not in (None, False, "vision"):
            raise CheckpointError(
                "config.json: use_bidirectional_attention lets tokens of text see later ones, which a KV cache can't"
            )
        keys.pass_over("partial_rotary_factor")  # the rules of single kinds of layers have it
        common = Gemma4Config.read(keys, **self.defaults)
        assert isinstance(common, Gemma4Config)
        windows = (*common.windows[:-1], None)  # the last layer never has one
        tied = keys.take("attention_k_eq_v", bool, False)
        sizes = _read_heads(keys, common, windows, tied)
        self.c = replace(
            common,
            windows=windows,
            dims=tuple(dim for dim, _ in sizes),
            kv_counts=tuple(count for _, count in sizes),
            embedding_multiplier=common.hidden_size**0.5,
            attention_scale=1.0,
            logit_cap=keys.maybe("final_logit_softcapping", float),
            keys_are_values=tied,
            input_size=max(0, keys.take("hidden_size_per_layer_input", int, self.input_size)),
            input_rows=keys.count("vocab_size_per_layer_input", 262144),
            sources=find_sources(windows, keys.take("num_kv_shared_layers", int, 0)),
            wide=keys.take("use_double_wide_mlp", bool, False),
            **_read_experts(keys),
        )
        return self.c

    def of_layer(self, c: DecoderConfig, layer: int) -> DecoderConfig:
        assert isinstance(c, Gemma4Config)
        factor = 2 if c.wide and c.sources[layer] is not None else 1
        return replace(
            c, head_dim=c.dims[layer], kv_heads=c.kv_counts[layer], intermediate_size=factor * c.intermediate_size
        )

    def make_ropes(self, w: Weights, c: DecoderConfig, max_len: int) -> Sequence[Rope | None]:
        assert isinstance(c, Gemma4Config)
        kinds = [(window is None, dim) for window, dim in zip(c.windows, c.dims, strict=True)]
        made = {
            (full, dim): Rope(w, _resized(c.rope if full else c.local_rope, dim), max_len)
            for full, dim in dict.fromkeys(kinds)
        }
        return [made[kind] for kind in kinds]


class Gemma4Unified(Gemma4):
    """One whose layers have no inputs and no experts."""

    input_size = 0
