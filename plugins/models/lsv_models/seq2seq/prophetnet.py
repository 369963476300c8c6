"""ProphetNet (Qi et al. 2020): beside the tokens, a stream of queries asks at each place what comes next.

The stream that asks for the next token is computed; those that ask for later ones see nothing of it, nor it of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lsv_models.seq2seq.bart import Bart
from lsv_models.seq2seq.distances import Buckets
from lsv_models.seq2seq.layers import DecoderLayer, Side
from lsv_runtime import products
from lsv_runtime.attention.chosen import each_row
from lsv_runtime.nn.attention import Attention, CrossAttention, Heads, Sizes
from lsv_runtime.nn.embed import Positions
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_NAMES = (
    (r"^prophetnet\.", "model."),
    (r"^model\.((en|de)coder\.)?word_embeddings\.", "model.shared."),
    (r"\.position_embeddings\.", ".embed_positions."),
    (r"\.embeddings_layer_norm\.", ".layernorm_embedding."),
    (r"\.cross_attn", ".encoder_attn"),
    (r"\.(query|key|value)_proj\.", lambda found: f".{found[1][0]}_proj."),
    (r"\.feed_forward\.intermediate\.", ".fc1."),
    (r"\.feed_forward\.output\.", ".fc2."),
    (r"\.feed_forward_layer_norm\.", ".final_layer_norm."),
)
_KEYS = {
    "hidden_size": "d_model",
    **{f"num_{side}_layers": f"{side}_layers" for side in ("encoder", "decoder")},
    **{f"num_{side}_attention_heads": f"{side}_attention_heads" for side in ("encoder", "decoder")},
}
"""What config.json calls BART's keys."""


class StreamAttention(Attention):
    """x [T, 2, hidden] -> the same: tokens see those up to themselves, queries these tokens and themselves.

    A score gets a bias by the distance, from as many as there are buckets, which each token and query has of its own.
    """

    op = "attention.streams"

    def __init__(self, w: Weights, c: Sizes, layer: int, *, buckets: Buckets, **given: Any) -> None:
        super().__init__(w, c, layer, None, **given)
        self.buckets, self.own, count = buckets, slice(*Heads(w, c).queries), buckets.count * c.heads
        place = w / "relative_pos_embeddings"
        self.bias_weight, self.bias_bias = place.take("weight", (count, c.hidden_size)), place.take("bias", (count,))
        self.layer = replace(self.layer, gathered=True)

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        q, k, v = self.qkv(x).view(len(x), 2, 3, self.heads, self.head_dim).unbind(2)
        biases = products.linear(x, self.bias_weight, self.bias_bias)
        biases = biases.view(len(x), 2, self.buckets.count, -1)[..., self.own].transpose(2, 3)  # [T, 2, heads, buckets]
        plan = step.attention[self.layer.group]
        keys, values = step.backend.gather(k[:, 0], v[:, 0], self.layer, step.cache, plan)
        attended = torch.zeros_like(q)  # zeros for padding
        for tokens, before in each_row(step.backend.lengths(plan)):
            row = (part[tokens].float() for part in (q, k, v, biases))
            attended[tokens] = self._attend(*row, keys[before].float(), values[before].float()).to(q.dtype)
        return self.out(attended.flatten(2))  # type: ignore[no-any-return]

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        biases: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """q, k and v [T, 2, heads, dim] of the last tokens of a row over the keys and values [C, heads, dim] of all."""
        table, scale = self.buckets.before().to(q.device), self.layer.scale
        places = torch.arange(len(keys), device=q.device)
        distance = places[len(keys) - len(q) :, None] - places
        # a query is at the place that it asks for, one behind its token's
        found = torch.stack([table[(distance + ahead).clamp(0, self.buckets.far)] for ahead in (0, 1)], dim=1)
        bias = biases.gather(-1, found[:, :, None].expand(-1, -1, q.shape[2], -1))
        scores = torch.einsum("tshd,chd->tshc", q, keys) * scale + bias
        scores = scores.masked_fill((distance < 0)[:, None, None], -torch.inf)
        itself = (q * k).sum(-1) * scale + biases[..., 0]
        itself[:, 0] = -torch.inf  # tokens have seen themselves
        weights = torch.cat((scores, itself[..., None]), dim=-1).softmax(-1)
        return torch.einsum("tshc,chd->tshd", weights[..., :-1], values) + weights[..., -1:] * v


class StreamCrossAttention(CrossAttention):
    """x [T, 2, hidden] -> the same, for tokens and then for queries."""

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        return torch.stack([super(StreamCrossAttention, self).forward(x[:, i], step) for i in (0, 1)], dim=1)


class Queries(nn.Module):
    """What the queries found: x [R, 2, hidden] -> [R, hidden]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1]


class ProphetNet(Bart):
    staged = False  # layers hand on two streams
    offset, logits_bias, positions = 1, False, 512

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, {_KEYS.get(key, key): value for key, value in config.items()}, max_len)
        streams = (w / "model" / "decoder" / "ngram_embeddings").take("weight", (self.streams, self.tokens.size))
        self.asking, self.norm = streams, Queries()

    def read_more(self, keys: Keys) -> None:
        self.streams = keys.count("ngram", 2)
        self.buckets = Buckets(keys.count("num_buckets", 32), keys.count("relative_max_distance", 128))
        keys.skip("disable_ngram_loss", "eps")
        keys.agree("add_cross_attention", True)
        keys.agree("pad_token_id", self.offset - 1)

    def read_positions(self, keys: Keys) -> tuple[int, int]:
        """Padding has a row before that of position 0, and queries are one place further than their tokens."""
        self.places_made = keys.count("max_position_embeddings", self.positions) - self.offset
        return self.places_made, self.places_made - 1

    def make_layer(self, w: Weights, c: Side, layer: int, source: int) -> DecoderLayer:
        attention = partial(StreamAttention, buckets=self.buckets)
        return DecoderLayer(w, c, self.form, layer, source, attention=attention, cross=StreamCrossAttention)

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        places = step.positions[0]
        # the first stream has the last vector, as it has in training
        asked = self.asking[-1] + self.places(places + 1)
        return self.embed_normed(torch.stack((self.tokens(ids, step) + self.places(places), asked), dim=1))  # type: ignore[no-any-return]

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NAMES))

    def _make_places(self, w: Weights, count: int, size: int) -> nn.Module:
        return Positions(w / "embed_positions", self.places_made, size, count, offset=self.offset)
