"""T5 (Raffel et al. 2019) and the models that share its layers: no positions, but biases of attention by distance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_models.seq2seq.distances import BiasedAttention, Buckets, declare_biases, mask_beyond
from lsv_models.seq2seq.heads import LooseHead
from lsv_models.seq2seq.layers import DecoderLayer, EncoderLayer, Form, Side
from lsv_models.seq2seq.tower import TextTower
from lsv_runtime.nn.embed import Embed, ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_BESIDE = (
    "classifier_dropout", "dropout_rate", "gradient_checkpointing", "head_dim", "hidden_size",
    "initializer_factor", "n_positions", "num_attention_heads", "num_hidden_layers", "output_past",
    "tokenizer_class",
)  # fmt: skip
_NAMES = (
    (r"^(encoder|decoder)\.embed_tokens\.", "shared."),
    (r"\.block\.(\d+)\.layer\.0\.layer_norm\.", r".layers.\1.self_attn_layer_norm."),
    (r"\.block\.(\d+)\.layer\.0\.(?:Local)?SelfAttention\.", r".layers.\1.self_attn."),
    (r"^decoder\.block\.(\d+)\.layer\.1\.layer_norm\.", r"decoder.layers.\1.encoder_attn_layer_norm."),
    (r"\.block\.(\d+)\.layer\.1\.EncDecAttention\.", r".layers.\1.encoder_attn."),
    (r"\.block\.(\d+)\.layer\.[12]\.layer_norm\.", r".layers.\1.final_layer_norm."),
    (r"\.block\.(\d+)\.layer\.[12]\.(?:DenseReluDense|mlp)\.", r".layers.\1."),
    (r"\.experts\.expert_(\d+)\.", r".experts.\1."),
    (r"_attn\.([qkvo])\.", r"_attn.\1_proj."),
)
"""A checkpoint's names of tensors, and what they are called here; all are applied in order."""


class T5(AttentionModel):
    """A family of the line says in its class attributes where it differs."""

    staged = True
    shares: ClassVar[bool] = True
    """Whether all layers add the biases of the first one."""
    ignores: tuple[str, ...] = (r"\.encoder_attn\.relative_attention_bias\.",)

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        keys = Keys(config)
        encoder, decoder, form = self._read(keys)
        self.buckets = Buckets(
            keys.count("relative_attention_num_buckets", 32), keys.count("relative_attention_max_distance", 128)
        )
        self.vocab_size, size = keys.count("vocab_size"), decoder.hidden_size
        scaled = self.scales_logits(keys)
        self.read_more(keys)
        keys.finish(type(self).__name__)
        self.tokens = Embed(w / "shared", self.vocab_size, size)
        self.layers = self._make_decoder(w / "decoder" / "layers", decoder, form, max_len)
        self.norm = RMSNorm(w / "decoder" / "final_layer_norm", size, decoder.norm_eps)
        head = LooseHead(w / "lm_head", self.vocab_size, size, self.tokens)
        self.head = ScaledHead(head, size**0.5, None) if scaled else head
        place = w / "encoder"
        places = [place / "layers" / i for i in range(encoder.layers)]
        layers = [
            EncoderLayer(at, encoder, form, mlp=self.make_experts(at, encoder, "encoder", i))
            for i, at in enumerate(places)
        ]
        self.source_biases = nn.ParameterList(
            declare_biases(place / "layers" / i / "self_attn", encoder, self.buckets)
            for i in range(1 if self.shares else encoder.layers)
        )
        norm = RMSNorm(place / "final_layer_norm", size, encoder.norm_eps)
        self.encoder = TextTower(self.read_text, layers, norm, width=size, longest=max_len, biases=self.biases)

    def read_more(self, keys: Keys) -> None:
        """Keys of a family's own."""

    def scales_logits(self, keys: Keys) -> bool:
        """Whether logits are divided by the root of the hidden size, as those of the first models are."""
        tied = keys.take("tie_word_embeddings", bool, True)
        return keys.take("scale_decoder_outputs", bool, tied)

    def make_experts(self, w: Weights, c: Side, side: str, layer: int) -> nn.Module | None:
        """What takes the place of the feed-forward block in a sparse layer; None in the others."""
        return None

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.tokens(ids, step)  # type: ignore[no-any-return]

    def read_text(self, ids: torch.Tensor) -> torch.Tensor:
        """What the encoder's first layer reads: ids int64 [T] -> [T, hidden]."""
        return self.tokens(ids, None)  # type: ignore[no-any-return]

    def biases(self, length: int, device: torch.device) -> Iterator[torch.Tensor]:
        """What the encoder's layers add to the scores of so many tokens, each [heads, T, T]."""
        buckets = self.buckets.around(length, device)
        made = (biases[buckets].movedim(2, 0) for biases in self.source_biases)
        return repeat(next(made)) if self.shares else made

    def rename(self, name: str) -> str:
        return substitute(name, _NAMES)

    def _read(self, keys: Keys) -> tuple[Side, Side, Form]:
        for name in _BESIDE:
            keys.maybe(name, object)
        *gated, activation = keys.take("feed_forward_proj", str, keys.json.get("dense_act_fn") or "relu").split("-", 1)
        activation = "gelu_new" if gated and activation == "gelu" else activation
        keys.agree("is_gated_act", bool(gated))
        keys.agree("dense_act_fn", activation)
        layers = keys.layers("num_layers")
        heads = keys.count("num_heads")
        side = partial(
            Side,
            hidden_size=keys.count("d_model"),
            heads=heads,
            kv_heads=heads,
            head_dim=keys.count("d_kv"),
            intermediate_size=keys.count("d_ff"),
            norm_eps=keys.take("layer_norm_epsilon", float, 1e-6),
            activation=activation,
        )
        mlp = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
        form = Form(norms="pre", norm=RMSNorm, bias=False, mlp_bias=False, scale=1.0, mlp=mlp)
        return side(layers=layers), side(layers=keys.layers("num_decoder_layers", layers)), form

    def _make_decoder(self, w: Weights, c: Side, form: Form, source: int) -> nn.ModuleList:
        makers = []
        for index in range(c.layers):
            if not index or not self.shares:
                biases = declare_biases(w / index / "self_attn", c, self.buckets)
            makers.append(partial(BiasedAttention, biases=biases, buckets=self.buckets))
        experts = (self.make_experts(w / index, c, "decoder", index) for index in range(c.layers))
        return nn.ModuleList(
            DecoderLayer(w / index, c, form, index, source, attention=make, mlp=mlp)
            for index, (make, mlp) in enumerate(zip(makers, experts, strict=True))
        )


class MT5(T5):
    """mT5 (Xue et al. 2020)."""

    def scales_logits(self, keys: Keys) -> bool:
        keys.maybe("tie_word_embeddings", bool)
        return False


class UMT5(T5):
    """UMT5 (Chung et al. 2023): each layer has biases of its own."""

    shares = False


class LongT5(T5):
    """LongT5 (Guo et al. 2022) whose encoder attends locally: a token sees those within a radius."""

    def read_more(self, keys: Keys) -> None:
        keys.agree("encoder_attention_type", "local")
        keys.skip("global_block_size")
        self.radius = keys.count("local_radius", 127)

    def biases(self, length: int, device: torch.device) -> Iterator[torch.Tensor]:
        bias = next(super().biases(length, device))
        return repeat(bias + mask_beyond(self.radius, length, device))
