"""What a checkpoint says of the prompts of a model that encodes text, and what of that no request is given unasked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.config import Choices
from lsv.offers import ModelOffer
from lsv.request.encoded import EncodedText
from lsv.resolve.locate import read_object
from lsv_base.errors import CheckpointError

_FILE = "generation_config.json"
_REFUSED = ("begin_suppress_tokens", "forced_decoder_ids", "sequence_bias")
"""Keys that change which answers are right, and that are not followed."""
_CHOSEN = (
    "num_beams", "num_beam_groups", "length_penalty", "early_stopping", "no_repeat_ngram_size", "min_length",
    "encoder_no_repeat_ngram_size", "max_length", "forced_eos_token_id",
)  # fmt: skip
"""Keys of how a search goes and when it ends, which here is what a request asks for."""


def read_encoded(
    checkpoint: Mapping[str, Any], folder: Path, model: ModelOffer, choices: Choices
) -> EncodedText | None:
    """How prompts begin; None for a model that does not encode text. generation_config.json goes before config.json.

    Raises ``CheckpointError`` for keys that can't be followed.
    """
    if not model.encodes:
        return None
    generation = read_object(folder / _FILE) or {}
    keys = {**checkpoint, **{name: value for name, value in generation.items() if value is not None}}
    refused = [name for name in _REFUSED if keys.get(name)]
    if refused:
        raise CheckpointError(
            f"{folder}: {', '.join(refused)} of {_FILE} can't be followed, and answers without would not be the "
            "model's: remove them",
            param="model",
        )
    chosen = [f"{name}={keys[name]}" for name in _CHOSEN if keys.get(name) not in (None, 0, 1, 1.0, False)]
    if chosen:
        choices.note("generation", "as requests ask", f"{', '.join(chosen)} of the checkpoint is not applied unasked")
    start = keys.get("decoder_start_token_id")
    start = keys.get("bos_token_id") if start is None else start
    if type(start) is not int:
        raise CheckpointError(
            f"{folder}: decoder_start_token_id must be the id of a token, got {start!r:.50}: "
            "set it in generation_config.json or with --hf-overrides",
            param="model",
        )
    return EncodedText(
        start=start,
        forced=_ids("forced_bos_token_id", keys.get("forced_bos_token_id")),
        forbidden=(
            *((token,) for token in _ids("suppress_tokens", keys.get("suppress_tokens"))),
            *(_ids("bad_words_ids", word) for word in keys.get("bad_words_ids") or ()),
        ),
        vocab_size=_vocab_size(checkpoint),
    )


def _vocab_size(checkpoint: Mapping[str, Any]) -> int:
    """That of the encoder, whose configuration may be one of its own."""
    own = checkpoint.get("encoder")
    own = own if isinstance(own, Mapping) else checkpoint
    text = own.get("text_config")
    own = text if isinstance(text, Mapping) else own
    found = own.get("src_vocab_size", own.get("vocab_size"))
    if type(found) is not int:
        raise CheckpointError(f"config.json: vocab_size must be a number of tokens, got {found!r:.50}", param="model")
    return found


def _ids(name: str, given: Any) -> tuple[int, ...]:
    found: Sequence[Any] = given if isinstance(given, list) else () if given is None else [given]
    if not all(type(token) is int for token in found):
        raise CheckpointError(f"{name} must hold token ids, got {given!r:.100}", param="model")
    return tuple(found)
