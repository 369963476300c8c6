"""Decoder-only transformers: the parts of a block, and the model around a stack of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import nn

from lsv.nn.attention import Attention
from lsv.nn.config import DecoderConfig
from lsv.nn.embed import Embed, Head
from lsv.nn.keys import Keys
from lsv.nn.mlp import GatedMLP
from lsv.nn.model import AttentionModel
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv.weights.quantizer import joint_format

log = logging.getLogger(__name__)


def is_bare(config: Mapping[str, Any]) -> bool:
    """Whether config.json names a model without a head (``Qwen3Model``), as embedding models do."""
    return str((config.get("architectures") or [""])[0]).endswith("Model")


class DecoderLayer(Bindable):
    """The parts of a block, under the tensor names that Llama made common. A model writes ``reference`` with them."""

    op: ClassVar[str] = "layer.other"
    """What ``reference`` computes. ``"layer"`` is the pre-norm block, ``x + attn(before_attn(x))`` and then
    ``x + mlp(before_mlp(x))``: fused kernels compute exactly that, so only such a block may take the name."""
    qk_norm: ClassVar[bool] = False
    """Whether every head of q and k is normalised before it is rotated."""
    qkv_bias: ClassVar[bool | None] = None
    """Whether q, k and v have biases; None leaves it to ``attention_bias`` in config.json."""
    out_bias: ClassVar[bool | None] = None
    """Whether the output projection of attention has a bias; None leaves it to ``attention_bias``."""
    mlp_bias: ClassVar[bool | None] = None
    """Whether the MLP has biases; None leaves it to ``mlp_bias`` in config.json."""

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable | None = None) -> None:
        """Layer number ``layer`` at ``w``; with a gated MLP of the config's sizes, unless ``mlp`` is another."""
        super().__init__()
        self.before_attn = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.attn = Attention(
            w / "self_attn",
            c,
            layer,
            rope,
            qk_norm=self.qk_norm,
            qkv_bias=c.attention_bias if self.qkv_bias is None else self.qkv_bias,
            out_bias=c.attention_bias if self.out_bias is None else self.out_bias,
        )
        self.before_mlp = RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps)
        self.mlp = self._gated_mlp(w / "mlp", c) if mlp is None else mlp

    def spec(self) -> OpSpec:
        attn, mlp = self.attn.spec(), self.mlp.spec()
        format = joint_format(attn.format, mlp.format)
        op = attn.op.replace(Attention.op, self.op, 1)
        return OpSpec(op, attn.dtype, format, {**mlp.shape, **attn.shape}, attn.flags | mlp.flags | {mlp.op})

    def _gated_mlp(self, w: Weights, c: DecoderConfig) -> GatedMLP:
        bias = c.mlp_bias if self.mlp_bias is None else self.mlp_bias
        return GatedMLP(w, c.hidden_size, c.intermediate_size, c.activation, bias=bias)


class Decoder(AttentionModel):
    """A decoder-only transformer with the tensor names that Llama made common."""

    ignores: tuple[str, ...] = (r"(^|\.)rotary_emb\.inv_freq$",)

    def __init__(self, w: Weights, c: DecoderConfig, layers: Iterable[DecoderLayer]) -> None:
        super().__init__()
        self.vocab_size = c.vocab_size
        self.embed = Embed(w / "model" / "embed_tokens", c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(w / "model" / "norm", c.hidden_size, c.norm_eps)
        self.head = Head(w / "lm_head", c.vocab_size, c.hidden_size, tied=self.embed if c.tied else None)
        if c.tied:
            self.ignores = (*self.ignores, r"^lm_head\.weight$")


class DenseDecoder(Decoder):
    """A decoder whose layers are all alike and whose config.json has only the keys that every decoder has.

    Keys that were not read and could change results are refused; the message names the class.
    """

    prefixes = (("layers", "model.layers"), ("embed_tokens", "model.embed_tokens"), ("norm", "model.norm"))
    layer: ClassVar[type[DecoderLayer]]
    """The class of its layers."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The family's values for what config.json may leave out: the arguments of ``DecoderConfig.read``."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys, **self.defaults)
        keys.agree("use_qk_norm", self.layer.qk_norm)
        keys.finish(type(self).__name__)
        if is_bare(config) and not c.tied:
            log.warning("the checkpoint has no head: its vectors are right, and answers would mean nothing")
            c = dataclasses.replace(c, tied=True)
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (self.layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
