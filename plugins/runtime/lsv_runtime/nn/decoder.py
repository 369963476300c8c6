"""Decoder-only transformers: the parts of a block, and the model around a stack of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from lsv.offers import OpSpec
from lsv_runtime.nn.attention import Attention, Fused
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import Embed, Head, ScaledEmbed, ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import joint_format

log = logging.getLogger(__name__)


def is_bare(config: Mapping[str, Any]) -> bool:
    """Whether config.json names a model without a head (``Qwen3Model``), as embedding models do."""
    name = str((config.get("architectures") or [""])[0])
    return name.endswith("Model") and not name.endswith("HeadModel")


class DecoderLayer(Bindable):
    """The parts of a block, under the tensor names that Llama made common. A model writes ``reference`` with them."""

    op: ClassVar[str] = "layer.other"
    """What ``reference`` computes. ``"layer"`` is the pre-norm block, ``x + attn(before_attn(x))`` and then
    ``x + mlp(before_mlp(x))``: fused kernels compute exactly that, so only such a block may take the name. Norms of
    another op make it another op by themselves."""
    norm: ClassVar[type[RMSNorm]] = RMSNorm
    """The class of its norms, those of q and k among them."""
    norms: ClassVar[Mapping[str, str]] = {"before_attn": "input_layernorm", "before_mlp": "post_attention_layernorm"}
    """The norms that the block has, and their names in the checkpoint."""
    attention: ClassVar[type[Attention]] = Attention
    fused: ClassVar[Fused | None] = None
    """Where q, k and v are, if in one tensor."""
    qk_norm: ClassVar[bool] = False
    """Whether every head of q and k is normalised before it is rotated."""
    qkv_bias: ClassVar[bool | None] = None
    """Whether q, k and v have biases; None leaves it to ``attention_bias`` in config.json."""
    out_bias: ClassVar[bool | None] = None
    """Whether the output projection of attention has a bias; None leaves it to ``attention_out_bias``, or else to
    ``attention_bias``."""
    mlp_bias: ClassVar[bool | None] = None
    """Whether the MLP has biases; None leaves it to ``mlp_bias`` in config.json."""
    mlp_names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    """Gate, up and down of the MLP; gate and up of one name are one tensor."""
    before_attn: RMSNorm
    after_attn: RMSNorm
    before_mlp: RMSNorm
    after_mlp: RMSNorm

    def __init__(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, mlp: Bindable | None = None
    ) -> None:
        """Layer number ``layer`` at ``w``; with a gated MLP of the config's sizes, unless ``mlp`` is another."""
        super().__init__()
        for place, name in self.norms.items():
            setattr(self, place, self.norm(w / name, c.hidden_size, c.norm_eps))
        self.attn = self.make_attention(w / "self_attn", c, layer, rope, self.attention)
        self.mlp = self._gated_mlp(w / "mlp", c) if mlp is None else mlp
        self.multiplier = c.residual_multiplier

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> Any:
        """Attention of a class at ``w``, or what stands for it; ``more`` is what it takes beside what all do."""
        given: dict[str, Any] = {
            "qk_norm": self.qk_norm,
            "qkv_bias": c.attention_bias if self.qkv_bias is None else self.qkv_bias,
            "out_bias": c.attention_out_bias if self.out_bias is None else self.out_bias,
            "norm": self.norm,
            "fused": type(self).fused,
            "scale": c.attention_scale,
            "cap": c.attention_cap,
        }
        return kind(w, c, layer, rope, **{**given, **more})

    def spec(self) -> OpSpec:
        attn, mlp = self.attn.spec(), self.mlp.spec()
        format = joint_format(attn.format, mlp.format)
        norms = {getattr(self, place).spec().op for place in self.norms} - {RMSNorm.op}
        op = ".".join((attn.op.replace(Attention.op, self.op, 1), *sorted(norms)))
        return OpSpec(op, attn.dtype, format, {**mlp.shape, **attn.shape}, attn.flags | mlp.flags | {mlp.op})

    def _gated_mlp(self, w: Weights, c: DecoderConfig) -> GatedMLP:
        bias = c.mlp_bias if self.mlp_bias is None else self.mlp_bias
        return GatedMLP(w, c.hidden_size, c.intermediate_size, c.activation, bias=bias, names=self.mlp_names)


class Decoder(AttentionModel):
    """A decoder-only transformer with the tensor names that Llama made common."""

    staged = True
    ignores: tuple[str, ...] = (r"(^|\.)rotary_emb\.inv_freq$",)
    embed: Embed | ScaledEmbed
    head: Head | ScaledHead

    def __init__(
        self, w: Weights, c: DecoderConfig, layers: Iterable[DecoderLayer], norm: type[RMSNorm] = RMSNorm
    ) -> None:
        super().__init__()
        self.vocab_size = c.vocab_size
        embed = Embed(w / "model" / "embed_tokens", c.vocab_size, c.hidden_size)
        self.embed = embed if c.embedding_multiplier == 1.0 else ScaledEmbed(embed, c.embedding_multiplier)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(w / "model" / "norm", c.hidden_size, c.norm_eps)
        head = self.make_head(w / "lm_head", c, embed if c.tied else None)
        plain = c.logit_divisor == 1.0 and c.logit_cap is None
        self.head = head if plain else ScaledHead(head, c.logit_divisor, c.logit_cap)

    def make_head(self, w: Weights, c: DecoderConfig, tied: Embed | None) -> Head:
        return Head(w, c.vocab_size, c.hidden_size, tied=tied)


class DenseDecoder(Decoder):
    """A decoder whose layers are all alike and whose config.json has only the keys that every decoder has.

    Keys that were not read and could change results are refused; the message names the class.
    """

    prefixes = (("layers", "model.layers"), ("embed_tokens", "model.embed_tokens"), ("norm", "model.norm"))
    layer: ClassVar[type[DecoderLayer]]
    """The class of its layers."""
    rope: ClassVar[type[Rope]] = Rope
    """How heads are rotated."""
    keys: ClassVar[Mapping[str, str]] = {}
    """What its config.json calls the common keys, where that is another name."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The family's values for what config.json may leave out: the arguments of ``DecoderConfig.read``."""
    has_head: ClassVar[bool] = False
    """Whether a checkpoint has a head even if its architecture is called a bare model."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config, self.keys)
        c = self.read(keys)
        keys.agree("use_qk_norm", self.layer.qk_norm)
        keys.finish(type(self).__name__)
        if is_bare(config) and not c.tied and not self.has_head:
            c = dataclasses.replace(c, tied=True)
        layers = w / "model" / "layers"
        ropes = self.make_ropes(w, c, max_len)
        made = (self.layer(layers / i, self.of_layer(c, i), i, rope) for i, rope in enumerate(ropes))
        super().__init__(w, c, made, self.layer.norm)

    def read(self, keys: Keys) -> DecoderConfig:
        """The numbers of config.json; a family that has keys of its own takes them here."""
        return DecoderConfig.read(keys, **self.defaults)

    def of_layer(self, c: DecoderConfig, layer: int) -> DecoderConfig:
        """The numbers of one layer, where layers differ."""
        return c

    def make_ropes(self, w: Weights, c: DecoderConfig, max_len: int) -> Sequence[Rope | None]:
        """The rope of each layer, None where tokens have no positions; those of one rule share a table."""
        if c.rope.kind == "longrope" and max_len > c.rope.original_length:
            log.warning(
                "short inputs are rotated by the long factors, too: up to %d tokens, --max-model-len gives them the "
                "short ones",
                c.rope.original_length,
            )
        full = local = type(self).rope(w, c.rope, max_len)
        if c.local_rope != c.rope:
            local = type(self).rope(w, c.local_rope, max_len)
        return [full if window is None else local for window in c.windows]
