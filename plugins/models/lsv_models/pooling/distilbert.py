"""DistilBERT (Sanh et al. 2019): BERT with half the layers, and without the embedding of a second text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
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


class DistilBert(TextEncoder):
    names = (
        (r"^distilbert\.", ""),
        (r"^embeddings\.(word|position)_embeddings", r"embeddings.\1"),
        (r"^embeddings\.LayerNorm", "embeddings.norm"),
        (r"^transformer\.layer\.", "layers."),
        (r"attention\.(q|k|v|out)_lin", r"attn.\1"),
        (r"sa_layer_norm", "attn_norm"),
        (r"output_layer_norm", "mlp_norm"),
        (r"ffn\.lin1", "mlp.up"),
        (r"ffn\.lin2", "mlp.down"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        w, keys = w.replicated(), Keys(config)
        c = EncoderConfig(
            vocab_size=keys.count("vocab_size"),
            hidden_size=keys.count("dim"),
            intermediate_size=keys.count("hidden_dim"),
            layers=keys.layers("n_layers"),
            heads=keys.count("n_heads"),
            activation=keys.take("activation", str, "gelu"),
            norm_eps=1e-12,
        )
        places = keys.count("max_position_embeddings", 512)
        keys.maybe("sinusoidal_pos_embds", bool)  # what the stored embedding of positions was made of
        finish(keys, "DistilBert")
        super().__init__(c)
        self.embed = Embeddings(w / "embeddings", c, max_len, places=places)
        layers = w / "layers"
        self.layers = nn.ModuleList(
            PostNormLayer(layers / i, c, Attention(layers / i / "attn", c, i), MLP(layers / i / "mlp", c))
            for i in range(c.layers)
        )
        kind, sizes = head_of(config), (c.hidden_size, count_labels(config))
        if kind == "sequence":
            self.scorer = Classifier(w, sizes, dense="pre_classifier", between=torch.relu)
        elif kind:
            self.scorer = Classifier(w, sizes)
