"""Granite MoE, also with a shared expert: Llama with multipliers on embeddings, scores, residuals and logits."""

from __future__ import annotations

import dataclasses

import torch

from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import DecoderLayer
from lsv.nn.keys import Keys
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv.weights.stacks import Stack
from lsv_models.llama import LlamaLayer
from lsv_models.sparse.decoder import STACKED, Scaled, SparseDecoder
from lsv_models.sparse.experts import Experts


class GraniteMoeLayer(LlamaLayer):
    """What attention and experts add is multiplied by ``residual``."""

    op = "layer.multiplied"
    residual = 1.0

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step) * self.residual
        return x + self.mlp(self.before_mlp(x)) * self.residual  # type: ignore[no-any-return]


class GraniteMoe(SparseDecoder):
    mlp = "block_sparse_moe"
    stacks = (
        *STACKED,
        Stack(r"(.*\.shared_mlp)\.input_linear\.weight", ("gate_proj.weight", "up_proj.weight"), experts=0),
        Stack(r"(.*\.shared_mlp)\.output_linear\.weight", ("down_proj.weight",), experts=0),
    )

    def rename(self, name: str) -> str:
        name = super().rename(name)
        for theirs, own in (
            (".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"),
            (".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"),
            (".block_sparse_moe.router.layer.", ".block_sparse_moe.gate."),
            (".shared_mlp.", ".block_sparse_moe.shared_mlp."),
        ):
            name = name if own in name else name.replace(theirs, own)
        return name

    def __init__(self, w: Weights, config: dict[str, object], max_len: int) -> None:
        super().__init__(w, config, max_len)
        self.embed = Scaled(self.embed, self.embedding)
        self.head = Scaled(self.head, 1.0 / self.logits)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        shared = keys.maybe("shared_intermediate_size", int) or 0
        return Experts(
            layers=range(c.layers),
            count=keys.count("num_local_experts", 8),
            top=keys.count("num_experts_per_tok", 2),
            size=c.intermediate_size,
            normalise=True,
            shared=shared,
            shared_name="shared_mlp",
        )

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.embedding = keys.take("embedding_multiplier", float, 1.0)
        self.logits = keys.take("logits_scaling", float, 1.0)
        self.residual = keys.take("residual_multiplier", float, 1.0)
        self.scale = keys.take("attention_multiplier", float, 1.0)

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        made = GraniteMoeLayer(w, c, layer, rope, mlp)
        made.residual = self.residual
        made.attn.layer = dataclasses.replace(made.attn.layer, scale=self.scale)
        return made
