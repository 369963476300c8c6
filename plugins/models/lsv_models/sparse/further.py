"""Layers that predict further tokens, behind those of the model: DeepSeek-V3's and GLM-4.5's.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2. Such a layer is given the model's last states and the
next tokens' embeddings, each normed, and says the token after these. Of several the first is used, again and again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lsv_base.errors import ConfigError
from lsv_models.sparse.decoder import STACKED
from lsv_models.sparse.deepseek import DeepseekLayer, DeepseekV3
from lsv_models.sparse.experts import make_mlp
from lsv_models.sparse.glm4_moe import Glm4Moe, Glm4MoeLayer, Glm4MoeNormedLayer, read_experts
from lsv_runtime import products
from lsv_runtime.drafts.reader import StateReader
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.latent import LatentConfig
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


class JoiningReader(StateReader):
    """One whose first layer is given embeddings and states, normed and joined by a matrix."""

    embed_tokens: Embed
    before_tokens: RMSNorm
    before_states: RMSNorm
    join: nn.Parameter
    """[hidden, 2 * hidden]: features of embeddings come first."""
    skips_first = False
    """Whether the embedding at the first place is taken for zero."""

    def merge(self, states: Tensor) -> Tensor:
        return states.to(self.dtype)

    def begin(self, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        tokens = self.embed_tokens.look_up(ids)
        if self.skips_first:
            tokens = tokens.masked_fill((positions == 0)[:, None], 0.0)
        both = torch.cat((self.before_tokens(tokens), self.before_states(states)), dim=-1)
        return products.linear(both, self.join)


class FurtherLayer(JoiningReader):
    """``config`` is that of the model, whose layers it follows in the same checkpoint."""

    stacks = STACKED
    skips_first = True  # that place is never trained

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        if not (config.get("num_nextn_predict_layers") or config.get("num_mtp_layers")):
            raise ConfigError(
                "speculative_config: this checkpoint has no layers that predict further tokens "
                "(num_nextn_predict_layers in config.json): choose another method",
                param="speculative_config",
            )
        number = int(config["num_hidden_layers"])
        place = w / "model" / "layers" / number
        layer, c = self.make_layer(place, {**config, "num_hidden_layers": number + 1}, max_len)
        self.dtype, self.vocab_size, self.width = w.dtype, c.vocab_size, c.hidden_size
        self.ignores = (rf"^(?!model\.layers\.{number}\.)", r"(^|\.)rotary_emb\.inv_freq$")
        self.aliases = {
            f"{place.name}.embed_tokens.weight": ("model.embed_tokens.weight",),
            f"{place.name}.shared_head.head.weight": ("lm_head.weight", "model.embed_tokens.weight"),
        }
        self.embed_tokens = Embed(place / "embed_tokens", c.vocab_size, c.hidden_size)
        self.before_tokens = RMSNorm(place / "enorm", c.hidden_size, c.norm_eps)
        self.before_states = RMSNorm(place / "hnorm", c.hidden_size, c.norm_eps)
        self.join = place.take("eh_proj.weight", (c.hidden_size, 2 * c.hidden_size))
        self.layers, self.norm = nn.ModuleList((layer,)), nn.Identity()
        self.last_norm = RMSNorm(place / "shared_head" / "norm", c.hidden_size, c.norm_eps)
        self.matrix = Head(place / "shared_head" / "head", c.vocab_size, c.hidden_size)

    def make_layer(self, w: Weights, config: Mapping[str, Any], max_len: int) -> tuple[DecoderLayer, DecoderConfig]:
        """The last layer of a model with ``config``, at ``w``, and the model's numbers."""
        raise NotImplementedError

    def head(self, states: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        return self.matrix(self.last_norm(states), step)  # type: ignore[no-any-return]


class DeepseekFurther(FurtherLayer):
    def make_layer(self, w: Weights, config: Mapping[str, Any], max_len: int) -> tuple[DecoderLayer, DecoderConfig]:
        keys = Keys(config)
        latent = LatentConfig.read(keys, keys.count("hidden_size"), keys.count("num_attention_heads"))
        c = DecoderConfig.read(keys)
        experts = dataclasses.replace(DeepseekV3.read_experts(keys, c), **DeepseekV3.experts)
        return DeepseekLayer(w, c, latent, c.layers - 1, Rope(w, latent.rope, max_len), experts), c


class Glm4MoeFurther(FurtherLayer):
    def make_layer(self, w: Weights, config: Mapping[str, Any], max_len: int) -> tuple[DecoderLayer, DecoderConfig]:
        keys = Keys({**Glm4Moe.defaults, **config})
        c = DecoderConfig.read(keys, **Glm4Moe.common)
        kind = Glm4MoeNormedLayer if keys.take("use_qk_norm", bool, False) else Glm4MoeLayer
        mlp = make_mlp(w / "mlp", c, c.layers - 1, read_experts(keys, c))
        return kind(w, c, c.layers - 1, Rope(w, c.rope, max_len), mlp), c
