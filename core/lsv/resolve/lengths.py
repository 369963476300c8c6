"""How long an input a checkpoint was made for, by its config.json, and how long inputs may be."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lsv.config import Choices
from lsv.offers import ModelOffer
from lsv.resolve.locate import language_of
from lsv.settings import Settings
from lsv_base.errors import CheckpointError, ConfigError

log = logging.getLogger(__name__)

_MOST_LENGTH = 1 << 31
_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length",
    "max_target_positions", "max_decoder_position_embeddings", "model_max_length",
)  # fmt: skip


class Limits(NamedTuple):
    """Limits on the length of an input, in tokens."""

    own: int
    """What the checkpoint was made for."""
    table: int | None
    """The number of positions of a model that has a table of them; None for a model without such an end."""


def read_limits(checkpoint: Mapping[str, Any], model: ModelOffer, most: int | None = None) -> Limits:
    """``most`` is the limit that other files of the checkpoint state."""
    table = _own_length(checkpoint, model) if model.bounded_positions else None
    return Limits(own_length(checkpoint, model, most), table)


def choose_length(settings: Settings, limits: Limits, choices: Choices) -> int:
    """The asked length, or the checkpoint's own.

    A length that a model with a table of positions can't have is lowered with a warning. Raises ``ConfigError`` for a
    length past what any other checkpoint was made for, unless settings allow it.
    """
    asked, own = settings["max_model_len"], limits.own
    if asked is None:
        choices.note("max_model_len", own, "the checkpoint's own")
        return own
    longer = settings["allow_long_max_model_len"]
    if limits.table is not None:
        return _lower(asked, limits.table if longer else own, limits.table, choices)
    if asked > own and not longer:
        raise ConfigError(
            f"max_model_len={asked} is more than the checkpoint's {own}; answers may break beyond it. "
            "Set LSV_ALLOW_LONG_MAX_MODEL_LEN=1 to run it all the same",
            param="max_model_len",
        )
    return int(asked)


def _lower(asked: int, most: int, table: int, choices: Choices) -> int:
    if asked <= most:
        return asked
    why = f"the model has a table of {table} positions" if most == table else f"the checkpoint was made for {most}"
    log.warning("max_model_len=%d is lowered to %d: %s", asked, most, why)
    choices.note("max_model_len", most, f"lowered from {asked}: {why}")
    return most


def own_length(checkpoint: Mapping[str, Any], model: ModelOffer, most: int | None = None) -> int:
    """Tokens the checkpoint was made for, rope scaling included, of what writes beside a tower or an encoder; at most
    ``most``.
    """
    length = _own_length(checkpoint, model)
    return length if most is None else min(length, most)


def _own_length(checkpoint: Mapping[str, Any], model: ModelOffer) -> int:
    checkpoint = {**checkpoint, **language_of(checkpoint)[1], **mapping_of(checkpoint, "decoder")}
    known = _LENGTH_KEYS if model.length_key is None else (model.length_key, *_LENGTH_KEYS)
    length = next((checkpoint[key] for key in known if isinstance(checkpoint.get(key), int)), None)
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
