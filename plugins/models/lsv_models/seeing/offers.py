"""What this package offers. Imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_SEEING = ("text", "image")

OFFERS = (
    ModelOffer("internvl_chat", ("InternVLChatModel",), "lsv_models.seeing.internvl:internvl_chat", modalities=_SEEING),
    ModelOffer(
        "internvl", ("InternVLForConditionalGeneration",), "lsv_models.seeing.internvl:internvl", modalities=_SEEING
    ),
    ModelOffer(
        "paligemma",
        ("PaliGemmaForConditionalGeneration",),
        "lsv_models.seeing.paligemma:PaliGemma",
        modalities=_SEEING,
        positions=8192,
    ),
)
"""Families that see, beside those that stand in files of their own."""
