"""Nemotron-H: layers that are Mamba 2, attention without positions, an MLP or experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import read_kinds, with_defaults
from lsv_models.recurrent.keys import TRAINING, ignore, read_limits
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer, Mamba2Sizes
from lsv_models.recurrent.plain_experts import PlainExperts, PlainMoE
from lsv_models.recurrent.stack import Names, RecurrentLayer, Stack
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights import stacks as weights
from lsv_runtime.weights.place import Weights

NAMES = Names("model.embeddings", "model.norm_f")
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
KINDS = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


class TokenWise(nn.Module):
    """An MLP in the place of a mixer."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        return self.mlp(x)  # type: ignore[no-any-return]


class NemotronH(Stack):
    prefixes = (("backbone", "model"), ("model.embed_tokens", "model.embeddings"), ("model.norm", "model.norm_f"))
    ignores = (*Stack.ignores, r"^mtp\.")
    stacks = (*Stack.stacks, weights.Stack(r"(.*\.experts)\.up_proj", ("up_proj.weight",)))

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        kinds = _read_kinds(config)
        eps = config.get("layer_norm_epsilon", 1e-5)
        keys = Keys(with_defaults(config, rms_norm_eps=eps, num_hidden_layers=len(kinds), head_dim=128))
        ignore(keys, *TRAINING, "layer_norm_epsilon", "layers_block_type", "layer_types", "expand", "chunk_size")
        ignore(keys, "hybrid_override_pattern", "use_mamba_kernels", "mamba_ssm_cache_dtype", "num_logits_to_keep")
        ignore(keys, "mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "hidden_act")
        ignore(keys, "attention_head_dim", "norm_eps", "rms_norm_eps", "time_step_rank")
        keys.agree("sliding_window", None)
        c = DecoderConfig.read(keys)
        groups = keys.count("n_groups", 8)
        sizes = Mamba2Sizes(
            hidden=c.hidden_size,
            heads=keys.count("mamba_num_heads", 128),
            head_dim=keys.count("mamba_head_dim", 64),
            state=keys.count("ssm_state_size", 128),
            groups=groups,
            conv=keys.count("conv_kernel", 4),
            limits=read_limits(keys),
            activation=keys.take("mamba_hidden_act", str, "silu"),
            bias=keys.take("use_bias", bool, False),
            conv_bias=keys.take("use_conv_bias", bool, True),
            eps=c.norm_eps,
            norm_groups=groups,
        )
        keys.agree("mamba_proj_bias", sizes.bias)
        wide, activation = keys.take("residual_in_fp32", bool, False), keys.take("mlp_hidden_act", str, "relu2")
        experts = PlainExperts.read(keys, activation)
        keys.finish("NemotronH")

        def mixer(i: int, place: Weights) -> nn.Module:
            if kinds[i] == "mamba":
                return Mamba2Mixer(place.replicated(), sizes, i)
            if kinds[i] == "attention":
                return Attention(place, c, i, None)
            if kinds[i] == "moe":
                return TokenWise(PlainMoE(place, c, experts))
            names, inner = ("up_proj", "down_proj"), (c.hidden_size, c.intermediate_size, c.hidden_size)
            return TokenWise(FeedForward(place, names, inner, activation, bias=c.mlp_bias))

        places = [w / "model" / "layers" / i for i in range(c.layers)]
        layers = (
            RecurrentLayer(RMSNorm(place / "norm", c.hidden_size, c.norm_eps), mixer(i, place / "mixer"), wide=wide)
            for i, place in enumerate(places)
        )
        super().__init__(
            w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied, names=NAMES, wide=wide,
        )  # fmt: skip

    def rename(self, name: str) -> str:
        """What stays in float32 lies a level deeper in checkpoints that transformers 5 has saved."""
        return super().rename(name).replace("._fp32_params.", ".")


def _read_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and set(pattern) <= set(PATTERN):
        kinds = [PATTERN[letter] for letter in pattern]
    else:
        listed = next((config[name] for name in ("layers_block_type", "layer_types") if config.get(name)), [])
        kinds = read_kinds(config, ("layers_block_type", "layer_types"), len(listed), KINDS) or []
    if not kinds:
        raise CheckpointError(
            "config.json: Nemotron-H needs a list of its layers, of mamba, attention, mlp and moe, in "
            f"layers_block_type or hybrid_override_pattern, got {pattern!r:.200}"
        )
    return kinds
