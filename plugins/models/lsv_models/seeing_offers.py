"""The wrappers of transformers whose images its own towers read, as small copies of them show; imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer
from lsv.request.media_needs import MediaNeeds

SEEING = (
    "AriaForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "DeepseekOcr2ForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "DeepseekVLHybridForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "JanusForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
    "QianfanOCRForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
)
WITH_TORCHVISION = (
    "Cohere2VisionForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
)
"""Those whose images transformers prepares with torchvision alone."""
_PIXTRAL = {"LlavaForConditionalGeneration": "vision_config.model_type=pixtral"}
MUTUAL = "tokens of an image see one another, which native models alone can do"
_NEEDS = MediaNeeds(
    files=("preprocessor_config.json", "processor_config.json"),
    bars={"use_bidirectional_attention": MUTUAL},
)
_TORCHVISION = MediaNeeds(_NEEDS.files, ("torchvision",), _NEEDS.bars)
_NOTE = "its language model runs natively where it can, and transformers' own tower reads images"


def _offer(
    name: str, architectures: tuple[str, ...], needs: MediaNeeds = _NEEDS, told_by: dict[str, str] | None = None
) -> ModelOffer:
    return ModelOffer(
        name,
        architectures,
        "lsv_models.generic.seeing:make",
        modalities=("text", "image"),
        adapts=True,
        media_needs=needs,
        note=_NOTE,
        told_by=told_by or {},
    )


OFFERS = (
    _offer("transformers_seeing", SEEING),
    _offer("transformers_torchvision", WITH_TORCHVISION, _TORCHVISION),
    _offer("transformers_pixtral", ("PixtralForConditionalGeneration",), told_by=_PIXTRAL),
)
