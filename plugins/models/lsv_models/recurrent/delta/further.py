"""The layer of Qwen3-Next and Qwen3.5 that predicts further tokens: one of gated attention, as the model has them.

It is given the next tokens' embeddings and the model's last states, and says what follows by the model's own head. Of
several the first is used, again and again. Its normed states are what it goes on from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from lsv_base.errors import ConfigError
from lsv_models.recurrent.delta.qwen3_next import Qwen3Next, Qwen35, Qwen35Moe, attention_layer, read_experts
from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_models.sparse.decoder import STACKED
from lsv_models.sparse.further import JoiningReader
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


class Qwen3NextFurther(JoiningReader):
    """``config`` is that of the model, beside which the layer is in the same checkpoint."""

    stacks = STACKED
    ignores = (r"^model\.layers\.", r"^model\.norm\.", r"^mtp\.layers\.(?!0\.)", r"(^|\.)rotary_emb\.inv_freq$")
    model: ClassVar[type[Qwen3Next]] = Qwen3Next

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        if config.get("mtp_use_dedicated_embeddings") or config.get("mtp_num_hidden_layers") == 0:
            lacks = "has none" if config.get("mtp_num_hidden_layers") == 0 else "has some with embeddings of their own"
            raise ConfigError(
                "speculative_config: of layers that predict further tokens by the model's embeddings this checkpoint "
                f"{lacks} (mtp_num_hidden_layers, mtp_use_dedicated_embeddings in config.json): choose another method",
                param="speculative_config",
            )
        keys = self.model.read_keys(config)
        c = DecoderConfig.read(keys, rotary_fraction=0.25)
        experts = read_experts(keys, c.layers) if self.model.defaults else None
        self.dtype, self.vocab_size, self.width = w.dtype, c.vocab_size, c.hidden_size
        self.aliases = {"lm_head.weight": ("model.embed_tokens.weight",)}
        place, sizes = w / "mtp", (c.hidden_size, c.norm_eps)
        self.embed_tokens = Embed(w / "model" / "embed_tokens", c.vocab_size, c.hidden_size)
        self.before_tokens = OffsetRMSNorm(place / "pre_fc_norm_embedding", *sizes)
        self.before_states = OffsetRMSNorm(place / "pre_fc_norm_hidden", *sizes)
        self.join = place.take("fc.weight", (c.hidden_size, 2 * c.hidden_size))
        layer = attention_layer(place / "layers" / 0, c, 0, Rope(w, c.rope, max_len), experts)
        self.layers, self.norm = nn.ModuleList((layer,)), OffsetRMSNorm(place / "norm", *sizes)
        self.matrix = Head(w / "lm_head", c.vocab_size, c.hidden_size)

    def head(self, states: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        return self.matrix(states, step)  # type: ignore[no-any-return]


class Qwen35Further(Qwen3NextFurther):
    model = Qwen35


class Qwen35MoeFurther(Qwen3NextFurther):
    model = Qwen35Moe
