"""PaliGemma: SigLIP, its patches projected, before a Gemma that reads the whole prompt at once.

Source: Beyer et al. 2024 (PaliGemma).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.clip import TowerConfig
from lsv_models.gemma.gemma import Gemma, GemmaLayer
from lsv_models.gemma.halves import Half
from lsv_models.senses.mutual import MutualAttention
from lsv_models.senses.towers.siglip import PREFIXES, UNREAD, SigLIPEncoder
from lsv_runtime.nn.encoder import check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Weights

# what published files leave out: of Gemma 2B, and of the tower
_TEXT: Mapping[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
    "num_key_value_heads": 1, "vocab_size": 257152, "max_position_embeddings": 8192,
}  # fmt: skip
_TOWER: Mapping[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27,
    "num_attention_heads": 16, "image_size": 224, "patch_size": 14,
}  # fmt: skip
# what stands elsewhere as well; what the prompt's tokens see, they see anyway
_BESIDE = ("hidden_size", "vocab_size", "ignore_index")
_BESIDE_TEXT = ("num_image_tokens", "use_bidirectional_attention")
# the projector is one layer, whatever activation is named
_BESIDE_VISION = ("projector_hidden_act",)


class Projector(nn.Module):
    """An embedding for each patch."""

    def __init__(self, w: Weights, c: TowerConfig, size: int) -> None:
        super().__init__()
        self.linear = Column.even(w, ("linear",), c.hidden_size, size, bias=True)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.linear(patches.flatten(0, 1))  # type: ignore[no-any-return]


class SeeingLayer(GemmaLayer):
    attention = MutualAttention


class PaliGemma(Half, Gemma):
    mutual = "prompts"
    layer = SeeingLayer
    unread = UNREAD
    prefixes = (*PREFIXES, *Half.prefixes)
    left_out = _TEXT

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        text = config.get("text_config")
        if isinstance(text, dict):
            kind = text.get("model_type", "gemma")
            if kind != "gemma":
                raise CheckpointError(f"config.json: the language model of PaliGemma must be gemma, got {kind!r:.50}")
            text = {key: value for key, value in text.items() if key not in _BESIDE_TEXT}
        super().__init__(w, {**config, "text_config": text}, max_len)
        keys = Keys({key: value for key, value in config.items() if key not in ("text_config", *_BESIDE)})
        vision = {**_TOWER, **keys.take("vision_config", dict, {})}
        tower = TowerConfig.read({key: value for key, value in vision.items() if key not in _BESIDE_VISION})
        size = self.norm.weight.shape[0]
        if tower.clip:
            raise CheckpointError("config.json: PaliGemma has SigLIP's tower, not CLIP's")
        keys.agree("projection_dim", size)
        check_placeholder("image_token_index", keys.take("image_token_index", int, 256000), self.vocab_size)
        keys.agree("tie_word_embeddings", True)
        keys.finish(type(self).__name__)
        place = w.replicated()
        self.encoder = SigLIPEncoder(place, tower, Projector(place / "multi_modal_projector", tower, size))
