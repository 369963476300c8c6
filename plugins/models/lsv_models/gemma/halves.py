"""The language models of Gemma 3 and PaliGemma by the config.json of the whole, for ``lsv_models.senses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lsv_base.errors import CheckpointError
from lsv_models.gemma.gemma import Gemma3
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.weights.place import Weights

_TOWERS = r"^(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio|multi_modal_projector)\."


class Half(DenseDecoder):
    """The language model of a checkpoint that has more, by the ``text_config`` of its config.json."""

    prefixes = (
        ("model.language_model", "model"),
        ("language_model.model", "model"),
        ("language_model.lm_head", "lm_head"),
    )
    left_out: ClassVar[Mapping[str, Any]] = {}
    """What published files leave out of ``text_config``."""
    unread: ClassVar[str] = _TOWERS
    """What its checkpoints hold that the model does not need."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        text = config.get("text_config")
        if not isinstance(text, dict):
            raise CheckpointError(f"config.json: text_config must be an object, got {text!r:.100}")
        super().__init__(w, {**self.left_out, **text}, max_len)
        self.ignores = (*self.ignores, self.unread)


class Gemma3Half(Half, Gemma3):
    left_out: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
    }  # fmt: skip
