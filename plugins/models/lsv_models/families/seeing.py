"""The wrappers of transformers whose images its own towers read, as small copies of them show."""

from __future__ import annotations

SEEING = (
    "AriaForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "JanusForConditionalGeneration",
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
