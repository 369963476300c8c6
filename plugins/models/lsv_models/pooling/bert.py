"""BERT (Devlin et al. 2018), RoBERTa (Liu et al. 2019) and what has their form: XLM-R, CamemBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lsv_models.pooling.encoder import (
    MLP,
    Attention,
    Embeddings,
    EncoderConfig,
    PostNormLayer,
    TextEncoder,
    finish,
    head_of,
)
from lsv_models.pooling.heads import Classifier, count_labels
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.place import Weights


class Bert(TextEncoder):
    names = (
        (r"^bert\.|^roberta\.", ""),
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
        (r"^embeddings\.(word|position)_embeddings", r"embeddings.\1"),
        (r"^embeddings\.token_type_embeddings", "embeddings.type"),
        (r"^embeddings\.LayerNorm", "embeddings.norm"),
        (r"^encoder\.layer\.", "layers."),
        (r"attention\.self\.(q)uery|attention\.self\.(k)ey|attention\.self\.(v)alue", r"attn.\1\2\3"),
        (r"attention\.output\.dense", "attn.out"),
        (r"attention\.output\.LayerNorm", "attn_norm"),
        (r"intermediate\.dense", "mlp.up"),
        (r"(layers\.\d+)\.output\.dense", r"\1.mlp.down"),
        (r"(layers\.\d+)\.output\.LayerNorm", r"\1.mlp_norm"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        w, keys = w.replicated(), Keys(config)
        c = EncoderConfig.read(
            keys,
            activation=keys.take("hidden_act", str, "gelu"),
            norm_eps=keys.take("layer_norm_eps", float, 1e-12),
            types=keys.count("type_vocab_size", 2),
        )
        keys.agree("position_embedding_type", "absolute")
        places = keys.count("max_position_embeddings", 512)
        finish(keys, type(self).__name__)
        super().__init__(c)
        self.embed = Embeddings(w / "embeddings", c, max_len, places=places, first=self.first_place(config))
        layers = w / "layers"
        self.layers = nn.ModuleList(
            PostNormLayer(layers / i, c, Attention(layers / i / "attn", c, i), MLP(layers / i / "mlp", c))
            for i in range(c.layers)
        )
        self.scorer = self.make_head(w, config, (c.hidden_size, count_labels(config)))

    def first_place(self, config: Mapping[str, Any]) -> int:
        """The position of the first token."""
        return 0

    def make_head(self, w: Weights, config: Mapping[str, Any], sizes: tuple[int, int]) -> nn.Module | None:
        kind = head_of(config)
        if kind == "sequence":
            self.ignores = tuple(one for one in self.ignores if "pooler" not in one)
            return Classifier(w, sizes, dense="pooler.dense")
        return Classifier(w, sizes) if kind else None


class Roberta(Bert):
    def first_place(self, config: Mapping[str, Any]) -> int:
        return int(config.get("pad_token_id") or 0) + 1

    def make_head(self, w: Weights, config: Mapping[str, Any], sizes: tuple[int, int]) -> nn.Module | None:
        kind = head_of(config)
        if kind == "sequence":
            return Classifier(w, sizes, dense="classifier.dense", out="classifier.out_proj")
        return Classifier(w, sizes) if kind else None
