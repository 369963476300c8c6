"""What this package offers. Imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_ALL = ("text", "image", "video", "audio")
_NO_SPEECH = "answers in text alone: weights of the parts that speak are skipped"

OFFERS = (
    ModelOffer(
        "qwen2_5_omni",
        ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"),
        "lsv_models.senses.qwen2_5_omni:Qwen25Omni",
        modalities=_ALL,
        note=_NO_SPEECH,
    ),
    ModelOffer(
        "glm4v",
        ("Glm4vForConditionalGeneration",),
        "lsv_models.senses.glm4v:Glm4v",
        modalities=("text", "image", "video"),
    ),
)
