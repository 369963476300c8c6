"""How long an input a checkpoint was made for, by its config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lsv.errors import CheckpointError
from lsv.offers import ModelOffer
from lsv.resolve.locate import language_of

_MOST_LENGTH = 1 << 31
_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length",
    "max_target_positions", "max_decoder_position_embeddings", "model_max_length",
)  # fmt: skip


def own_length(checkpoint: Mapping[str, Any], model: ModelOffer, most: int | None = None) -> int:
    """Tokens the checkpoint was made for, rope scaling included, of what writes beside a tower or an encoder; at most
    ``most``.
    """
    length = _own_length(checkpoint, model)
    return length if most is None else min(length, most)


def _own_length(checkpoint: Mapping[str, Any], model: ModelOffer) -> int:
    checkpoint = {**checkpoint, **language_of(checkpoint)[1], **mapping_of(checkpoint, "decoder")}
    length = next((checkpoint[key] for key in _LENGTH_KEYS if isinstance(checkpoint.get(key), int)), None)
    if length is None and model.positions is not None:
        return model.positions - model.unused_positions
    length = 2048 if length is None else length
    rope = mapping_of(checkpoint, "rope_scaling") or mapping_of(checkpoint, "rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = rope.get("factor")
    if factor is not None and kind not in ("default", "llama3", "longrope", "su"):
        # otherwise max_position_embeddings already holds the scaled length
        original = rope.get("original_max_position_embeddings", length)
        length = original * factor if all(isinstance(part, int | float) for part in (original, factor)) else math.nan
    if not 1 <= length < _MOST_LENGTH:
        raise CheckpointError(
            f"config.json: the longest input would have {length} tokens: set --max-model-len", param="model"
        )
    return int(length) - model.unused_positions


def mapping_of(checkpoint: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object in config.json; empty where there is none. Raises ``CheckpointError`` for anything else."""
    found = checkpoint.get(key)
    if found and not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: {key} must be an object, got {found!r:.100}", param="model")
    return found or {}
