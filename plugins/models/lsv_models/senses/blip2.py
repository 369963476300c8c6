"""BLIP-2 (Li et al. 2023): queries read a vision transformer's output, and stand before the text of an OPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.gpt.opt import Opt
from lsv_runtime import products
from lsv_runtime.nn.encoder import SelfAttention, check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import FeedForward, find_activation
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.step import Embeddings, Step
from lsv_runtime.weights.place import Weights

_OPT: Mapping[str, Any] = {
    "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "max_position_embeddings": 2048,
}  # fmt: skip
"""What published files leave out of the language model's numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers of the tower, or of the transformer of queries."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    norm_eps: float
    activation: str

    @classmethod
    def read(cls, keys: Keys, size: int, inner: int, layers: int, heads: int, eps: float) -> Sizes:
        """The arguments are the defaults for absent keys."""
        return cls(
            hidden_size=keys.count("hidden_size", size),
            intermediate_size=keys.count("intermediate_size", inner),
            layers=keys.layers("num_hidden_layers", layers),
            heads=keys.count("num_attention_heads", heads),
            norm_eps=keys.take("layer_norm_eps", float, eps),
            activation=keys.take("hidden_act", str, "gelu"),
        )


class TowerLayer(nn.Module):
    """A pre-norm block: x [T, size] -> [T, size]."""

    def __init__(self, w: Weights, c: Sizes) -> None:
        super().__init__()
        size = c.hidden_size
        self.before_attn = LayerNorm(w / "layer_norm1", size, c.norm_eps)
        self.attn = SelfAttention(w / "self_attn", ("qkv",), "projection", size, c.heads)
        self.before_mlp = LayerNorm(w / "layer_norm2", size, c.norm_eps)
        self.mlp = FeedForward(w / "mlp", ("fc1", "fc2"), (size, c.intermediate_size, size), c.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), ((1, len(x)),))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class QueryAttention(nn.Module):
    """x [Q, size] attends to seen [T, width], and the sum is normed: [Q, size]."""

    def __init__(self, w: Weights, c: Sizes, width: int) -> None:
        super().__init__()
        size, place, behind = c.hidden_size, w / "attention", w / "output"
        self.heads = c.heads
        self.q = Column.even(place, ("query",), size, size, bias=True)
        self.kv = Column.even(place, ("key", "value"), width, size, bias=True)
        self.out = Column.even(behind, ("dense",), size, size, bias=True)
        self.norm = LayerNorm(behind / "LayerNorm", size, c.norm_eps)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(len(x), self.heads, -1).transpose(0, 1)[None]
        k, v = self.kv(seen).view(len(seen), 2, self.heads, -1).permute(1, 2, 0, 3)[:, None].unbind()
        attended = products.attend(q, k, v)[0].transpose(0, 1)
        return self.norm(x + self.out(attended.flatten(1)))  # type: ignore[no-any-return]


class QueryLayer(nn.Module):
    """Queries attend to one another, in some layers to the image as well, and go through a feed-forward block."""

    def __init__(self, w: Weights, c: Sizes, width: int | None) -> None:
        super().__init__()
        size = c.hidden_size
        self.attn = QueryAttention(w / "attention", c, size)
        self.cross = None if width is None else QueryAttention(w / "crossattention", c, width)
        self.first = Column.even(w / "intermediate_query", ("dense",), size, c.intermediate_size, bias=True)
        self.activate = find_activation(c.activation)
        self.second = Column.even(w / "output_query", ("dense",), c.intermediate_size, size, bias=True)
        self.norm = LayerNorm(w / "output_query" / "LayerNorm", size, c.norm_eps)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        x = self.attn(x, x)
        x = x if self.cross is None else self.cross(x, image)
        return self.norm(x + self.second(self.activate(self.first(x))))  # type: ignore[no-any-return]


class Blip2Encoder(Encoder):
    """Takes ``pixel_values`` [1, 3, size, size]: [queries, width]. The queries' layers are the last part."""

    def __init__(
        self, w: Weights, vision: Mapping[str, Any], queries: Mapping[str, Any], count: int, width: int
    ) -> None:
        super().__init__()
        keys = Keys(vision)
        self.side, self.patch = keys.count("image_size", 224), keys.count("patch_size", 14)
        keys.agree("qkv_bias", True)
        keys.agree("num_channels", 3)
        keys.skip("projection_dim")  # of another head
        c = Sizes.read(keys, 1408, 6144, 39, 16, 1e-6)
        keys.finish("the tower of BLIP-2")
        place, size = w / "vision_model", c.hidden_size
        self.width, self.parts = width, c.layers + 1
        embeddings = place / "embeddings"
        self.patches = (embeddings / "patch_embedding").take("weight", (size, 3, self.patch, self.patch))
        self.patch_bias = (embeddings / "patch_embedding").take("bias", (size,))
        self.start = embeddings.take("class_embedding", (1, 1, size))
        self.places = embeddings.take("position_embedding", (1, (self.side // self.patch) ** 2 + 1, size))
        self.layers = nn.ModuleList(TowerLayer(place / "encoder" / "layers" / i, c) for i in range(c.layers))
        self.norm = LayerNorm(place / "post_layernorm", size, c.norm_eps)
        q, every = _read_queries(queries, size)
        self.queries = w.take("query_tokens", (1, count, q.hidden_size))
        self.query_norm = LayerNorm(w / "qformer" / "layernorm", q.hidden_size, q.norm_eps)
        inside = w / "qformer" / "encoder" / "layer"
        self.query_layers = nn.ModuleList(
            QueryLayer(inside / i, q, None if i % every else size) for i in range(q.layers)
        )
        self.projector = Column.even(w, ("language_projection",), q.hidden_size, width, bias=True)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        pixels = inputs["pixel_values"].to(self.patches.dtype)
        cut = products.convolve(pixels, self.patches, self.patch_bias, stride=self.patch).flatten(2).transpose(1, 2)
        return (torch.cat((self.start, cut), dim=1) + self.places)[0]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        return {"pixel_values": torch.zeros(1, 3, self.side, self.side)}

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        if part < len(self.layers):
            x: torch.Tensor = self.layers[part](state)
            return self.norm(x) if part + 1 == len(self.layers) else x
        queries = self.query_norm(self.queries[0])
        for layer in self.query_layers:
            queries = layer(queries, state)
        return self.projector(queries)  # type: ignore[no-any-return]


def _read_queries(config: Mapping[str, Any], width: int) -> tuple[Sizes, int]:
    """The numbers of the transformer of queries, and every how many layers they attend to the image."""
    keys = Keys(config)
    keys.agree("use_qformer_text_input", False)
    keys.agree("encoder_hidden_size", width)
    keys.agree("position_embedding_type", "absolute")
    keys.skip("vocab_size", "classifier_dropout")  # of texts, which it does not read here
    every = keys.count("cross_attention_frequency", 2)
    found = Sizes.read(keys, 768, 3072, 12, 12, 1e-12)
    keys.finish("the transformer of queries")
    return found, every


class Blip2(Opt):
    """OPT, with what the queries saw before its text."""

    prefixes = (("language_model.model", "model"), ("language_model.lm_head", "lm_head"))
    ignores = (*Opt.ignores, r"^qformer\.embeddings\.|^vision_model\.embeddings\.position_ids$|\.position_ids$")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        text = keys.take("text_config", dict)
        if text.get("model_type", "opt") != "opt":
            raise CheckpointError(f"config.json: language models are opt, got {text['model_type']!r:.100}")
        super().__init__(w, {**_OPT, **text}, max_len)
        if self.widen is not None or self.places is None:
            raise CheckpointError("config.json: word_embed_proj_dim must be hidden_size, which is that of the queries")
        token = keys.take("image_token_index", object, keys.json.get("image_token_id"))
        check_placeholder("image_token_index", token, self.vocab_size)
        keys.agree("use_decoder_only_language_model", True)
        keys.agree("tie_word_embeddings", text.get("tie_word_embeddings", True))
        keys.skip("image_token_id", "image_text_hidden_size")  # the latter is of another head
        parts = keys.take("vision_config", dict), keys.take("qformer_config", dict)
        count = keys.count("num_query_tokens", 32)
        keys.finish(type(self).__name__)
        self.encoder = Blip2Encoder(w.replicated(), *parts, count, self.places.weight.shape[1])

    def place_media(self, x: torch.Tensor, media: Embeddings, step: Step) -> torch.Tensor:
        """Positions are added to what stands in the places of tokens, too."""
        assert self.places is not None, "there is no OPT without learned positions"
        rows = media.rows.to(x.dtype) + self.places(step.positions[0, media.places])
        return x.index_copy(0, media.places, rows)
