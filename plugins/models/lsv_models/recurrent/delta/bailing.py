"""Ling 3: Kimi Linear's layers with bounded decays, and latent attention whose heads are gated."""

from __future__ import annotations

import torch

from lsv_models.recurrent.delta.channel_mixer import ChannelSizes
from lsv_models.recurrent.delta.kimi_linear import KINDS, LatentHybrid
from lsv_models.recurrent.hybrid import read_kinds
from lsv_models.recurrent.keys import ignore
from lsv_runtime import gates
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.latent import LatentAttention, LatentConfig
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


class GatedLatentAttention(LatentAttention):
    """One whose heads are weighed by a sigmoid of what the layer is given."""

    op = "attention.latent.head_gated"

    def __init__(self, w: Weights, c: LatentConfig, layer: int, rope: Rope | None) -> None:
        super().__init__(w, c, layer, rope)
        self.gate = Column.even(w, ("g_proj",), c.hidden_size, c.heads)

    def project(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return super().project(attended * gates.sigmoid(self.gate(x).float()).to(x.dtype)[..., None], x)


class BailingHybrid(LatentHybrid):
    names = (
        (r"\.word_embeddings\.", ".embed_tokens."),
        (r"\.attention\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.", ".self_attn."),
    )
    correction = "expert_bias"
    attention = GatedLatentAttention
    norm_eps = 1e-6
    scale = 2.5
    defaults = {
        "rope_theta": 6e6, "num_expert_group": 8, "topk_group": 4, "num_shared_experts": 1, "first_k_dense_replace": 2,
    }  # fmt: skip

    def read_sizes(self, keys: Keys, c: DecoderConfig) -> ChannelSizes:
        conv = keys.count("short_conv_kernel_size", 4)
        lowest = keys.take("kda_lower_bound", float, -5.0)
        return ChannelSizes(
            heads=keys.count("linear_num_heads", c.heads),
            dim=keys.count("linear_head_dim", keys.count("head_dim", 128)),
            conv=keys.count("linear_conv_kernel_dim", conv),
            lowest=lowest if keys.take("kda_safe_gate", bool, True) else None,
        )

    def read_kinds(self, keys: Keys, layers: int) -> list[str]:
        every = keys.count("layer_group_size", 6)
        ignore(keys, "mtp_loss_scaling_factor")
        return read_kinds(keys.json, ("layer_types",), layers, KINDS) or [
            "recurrent" if (layer + 1) % every else "attention" for layer in range(layers)
        ]
