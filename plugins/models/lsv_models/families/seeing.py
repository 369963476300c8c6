"""The wrappers of transformers whose images its own towers read, as small copies of them show."""

from __future__ import annotations

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
