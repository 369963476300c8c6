"""Language models that see images, by the names that checkpoints give them."""

from __future__ import annotations

from lsv.offers import ModelOffer

_SEEING = ("text", "image")
OFFERS = (
    ModelOffer("blip2", ("Blip2ForConditionalGeneration",), "lsv_models.images.blip2:Blip2", modalities=_SEEING),
    ModelOffer(
        "chameleon", ("ChameleonForConditionalGeneration",), "lsv_models.images.chameleon:Chameleon",
        modalities=_SEEING,
    ),
    ModelOffer("fuyu", ("FuyuForCausalLM",), "lsv_models.images.fuyu:Fuyu", modalities=_SEEING),
    ModelOffer(
        "mllama", ("MllamaForConditionalGeneration",), "lsv_models.images.mllama:Mllama", modalities=_SEEING
    ),
)  # fmt: skip
