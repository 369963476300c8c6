"""The text model of a class: what kind it is, and whether transformers' class can be asked for text alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from lsv_doctor.models.orders import TextModel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_PICTURES = "its encoder reads pictures, and transformers' class has no text alone to read"
_MUSIC = "it continues codes of music, not text"
NO_TEXT: Mapping[str, tuple[TextModel, str]] = {
    "diffusion_gemma": ("other", "it fills blocks of masked tokens (diffusion), not one token after the other"),
    "gemma4_assistant": ("other", "it drafts for another model, whose states and cache it reads"),
    "gemma4_unified_assistant": ("other", "it drafts for another model, whose states and cache it reads"),
    "idefics": ("decoder", "transformers' class takes no text without a picture"),
    "kyutai_speech_to_text": ("other", "each of its tokens is one of text and 32 codes of sound"),
    "musicgen": ("other", _MUSIC),
    "musicgen_melody": ("other", _MUSIC),
    "pi0": ("other", "it answers with the actions of a robot"),
    "pix2struct": ("encoder-decoder", _PICTURES),
    "pp_formulanet": ("encoder-decoder", _PICTURES),
    "udop": ("encoder-decoder", "its encoder reads words with their places on a page, not words alone"),
    "vision-encoder-decoder": ("encoder-decoder", _PICTURES),
    "voxtral_realtime": ("decoder", "transformers' class takes no token without the sound that belongs to it"),
}
"""By ``model_type``: classes that can't be asked for text alone, with the kind of their text model and the reason."""
_INSIDE = ("thinker", "language_model", "text_decoder", "text_model")
"""Attributes of a wrapper that may be a whole language model."""


def kind_of(config: PreTrainedConfig) -> TextModel:
    """The kind of the text model of a configuration."""
    if config.model_type in NO_TEXT:
        return NO_TEXT[config.model_type][0]
    text: Any = config.get_text_config()
    both = (getattr(one, "is_encoder_decoder", False) for one in (config, text))
    return "encoder-decoder" if any(both) else "decoder"


@torch.inference_mode()
def language_model(model: PreTrainedModel) -> tuple[PreTrainedModel, str]:
    """The module that answers texts alone: the model itself, or one inside where its own forward pass needs more.

    Also says so, in words; empty for the model itself. Raises what the model raises if there is none.
    """
    ids = torch.arange(8)[None]
    try:
        model(input_ids=ids, use_cache=False)
    except Exception as error:
        inside: Any = next((getattr(model, name) for name in _INSIDE if hasattr(model, name)), None)
        if inside is None or inside.get_output_embeddings() is None:
            raise
        inside(input_ids=ids, use_cache=False)
        why = f"transformers' own class takes no text alone ({type(error).__name__}): its language model was asked"
        return inside, why
    return model, ""
