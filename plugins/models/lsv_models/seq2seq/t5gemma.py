"""T5Gemma (Zhang et al. 2025): two Gemma 2 models, one of which reads a text as a whole for the other to attend to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_models.gemma.gemma import read_scores
from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_models.seq2seq.distances import mask_beyond
from lsv_models.seq2seq.heads import LooseHead
from lsv_models.seq2seq.layers import DecoderLayer, EncoderAttention, EncoderLayer, Form
from lsv_models.seq2seq.tower import TextTower
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import Embed, ScaledEmbed, ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_BESIDE = ("classifier_dropout_rate", "dropout_rate", "initializer_range", "vocab_size")
_NAMES = (
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.pre_(self|cross)_attn_layernorm\.", r".\1_attn_layer_norm."),
    (r"\.post_(self|cross)_attn_layernorm\.", r".\1_attn_after_norm."),
    (r"\.cross_attn_(layer|after)_norm\.", r".encoder_attn_\1_norm."),
    (r"\.pre_feedforward_layernorm\.", ".final_layer_norm."),
    (r"\.post_feedforward_layernorm\.", ".final_after_norm."),
    (r"\.mlp\.", "."),
    (r"^lm_head\.out_proj\.", "lm_head."),
)
_GATED = ("gate_proj", "up_proj", "down_proj")


class T5Gemma(AttentionModel):
    """``defaults`` are a family's arguments of ``DecoderConfig.read``."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "activation": "gelu_pytorch_tanh", "tied": True, "full_every": 2,
    }  # fmt: skip
    staged = True
    shared: ClassVar[bool] = False
    """Whether encoder and decoder share an embedding."""
    ignores: tuple[str, ...] = (r"\.rotary_emb\.",)

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        keys = Keys(config)
        source, target = (self._read_side(keys, side) for side in ("encoder", "decoder"))
        keys.maybe("tie_word_embeddings", bool)
        for name in _BESIDE:
            keys.maybe(name, object)
        self.read_more(keys)
        keys.finish(type(self).__name__)
        self.vocab_size, self.source_windows = target.vocab_size, source.windows
        place = w / "model" / "decoder"
        home = w / "model" / ("encoder" if self.shared else "decoder") / "embed_tokens"
        tokens = Embed(home, target.vocab_size, target.hidden_size)
        self.embed = self.make_embed(home, target, tokens)
        self.layers = nn.ModuleList(
            self.make_layer(place / "layers" / i, target, i, rope, source.hidden_size, max_len)
            for i, rope in enumerate(_make_ropes(w, target, max_len))
        )
        self.norm = OffsetRMSNorm(place / "norm", target.hidden_size, target.norm_eps)
        head = LooseHead(w / "lm_head", target.vocab_size, target.hidden_size, tokens)
        self.head = ScaledHead(head, 1.0, target.logit_cap)
        self._make_encoder(w / "model" / "encoder", source, max_len)

    def _make_encoder(self, w: Weights, c: DecoderConfig, longest: int) -> None:
        self.source_embed = self.embed
        if not self.shared:
            home = w / "embed_tokens"
            self.source_embed = self.make_embed(home, c, Embed(home, c.vocab_size, c.hidden_size))
        ropes = _make_ropes(w, c, longest)
        layers = [self.make_source_layer(w / "layers" / i, c, rope) for i, rope in enumerate(ropes)]
        norm = OffsetRMSNorm(w / "norm", c.hidden_size, c.norm_eps)
        self.encoder = TextTower(self.read_text, layers, norm, width=c.hidden_size, longest=longest, biases=self.biases)

    def read_more(self, keys: Keys) -> None:
        """Keys of a family's own."""

    def make_embed(self, w: Weights, c: DecoderConfig, tokens: Embed) -> nn.Module:
        return ScaledEmbed(tokens, c.embedding_multiplier)

    def make_source_layer(self, w: Weights, c: DecoderConfig, rope: Rope) -> nn.Module:
        form = make_form(c)
        return EncoderLayer(w, c, form, attention=EncoderAttention(w / "self_attn", c, form, rope))

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, width: int, source: int) -> nn.Module:
        """A layer of the decoder, for texts of at most ``source`` tokens of ``width`` numbers."""
        return DecoderLayer(w, c, make_form(c), layer, source, attention=partial(Attention, rope=rope), width=width)

    def read_text(self, ids: torch.Tensor) -> torch.Tensor:
        """What the encoder's first layer reads: ids int64 [T] -> [T, hidden]."""
        return self.source_embed(ids, None)  # type: ignore[no-any-return]

    def biases(self, length: int, device: torch.device) -> Iterator[torch.Tensor | None]:
        """What the encoder's layers add to the scores of so many tokens: windows reach to both sides."""
        return (None if window is None else mask_beyond(window, length, device) for window in self.source_windows)

    def rename(self, name: str) -> str:
        return substitute(name, _NAMES)

    def _read_side(self, keys: Keys, side: str) -> DecoderConfig:
        own = Keys(keys.take(side, dict))
        c = DecoderConfig.read(own, **self.defaults)
        own.skip("classifier_dropout_rate", "dropout_rate", "cross_attention_hidden_size")
        activation = own.take("hidden_activation", str, c.activation)
        c = replace(read_scores(own, c), activation=activation, embedding_multiplier=c.hidden_size**0.5)
        own.finish(f"the {side} of {type(self).__name__}")
        return c


def _make_ropes(w: Weights, c: DecoderConfig, max_len: int) -> list[Rope]:
    """The rope of each layer."""
    full = local = Rope(w, c.rope, max_len)
    if c.local_rope != c.rope:
        local = Rope(w, c.local_rope, max_len)
    return [full if window is None else local for window in c.windows]


def make_form(c: DecoderConfig) -> Form:
    """How the layers of both sides are put together."""
    return Form(
        norms="sandwich", norm=OffsetRMSNorm, bias=c.attention_bias, mlp_bias=False, mlp=_GATED,
        scale=c.attention_scale, cap=c.attention_cap,
    )  # fmt: skip
