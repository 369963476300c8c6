"""Granite MoE, also with a shared expert: Llama with multipliers on embeddings, scores, residuals and logits."""

from __future__ import annotations

from lsv_models.rms.blocks import ScaledLayer
from lsv_models.rms.granite import read_multipliers
from lsv_models.sparse.decoder import STACKED, SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.stacks import Stack


class GraniteMoe(SparseDecoder):
    layer = ScaledLayer
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

    def read(self, keys: Keys) -> DecoderConfig:
        return read_multipliers(keys, super().read(keys))

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
