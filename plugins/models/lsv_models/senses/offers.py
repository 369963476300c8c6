"""What this package offers. Imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer, ModelPart

_SEEING = ("text", "image")
_WATCHING = (*_SEEING, "video")
# Intel's list of models for Arc cards: MiniCPM-V in bfloat16 "to avoid NaN"
_NOT_FINITE = {"float16": "its activations are not always finite; use bfloat16 or float32"}
_NO_SPEECH = "answers in text alone: weights of the parts that speak are skipped"

OFFERS = (
    ModelOffer("internvl_chat", ("InternVLChatModel",), "lsv_models.senses.internvl:internvl_chat", modalities=_SEEING),
    ModelOffer(
        "internvl", ("InternVLForConditionalGeneration",), "lsv_models.senses.internvl:internvl", modalities=_SEEING
    ),
    ModelOffer(
        "paligemma",
        ("PaliGemmaForConditionalGeneration",),
        "lsv_models.senses.paligemma:PaliGemma",
        modalities=_SEEING,
        positions=8192,
        divisible=False,  # tokens of a prompt see one another, and Gemma's do not
    ),
    ModelOffer("mllama", ("MllamaForConditionalGeneration",), "lsv_models.senses.mllama:Mllama", modalities=_SEEING),
    ModelOffer(
        "blip2",
        ("Blip2ForConditionalGeneration",),
        "lsv_models.senses.blip2:Blip2",
        modalities=_SEEING,
        bounded_positions=True,
    ),
    ModelOffer(
        "chameleon", ("ChameleonForConditionalGeneration",), "lsv_models.senses.chameleon:Chameleon", modalities=_SEEING
    ),
    ModelOffer("fuyu", ("FuyuForCausalLM",), "lsv_models.senses.fuyu:Fuyu", modalities=_SEEING),
    ModelOffer(
        "minicpmv",
        ("MiniCPMV",),
        "lsv_models.senses.minicpmv:minicpmv",
        modalities=_WATCHING,
        stop_tokens=("<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
        unstable=_NOT_FINITE,
    ),
    ModelOffer("phi3v", ("Phi3VForCausalLM",), "lsv_models.senses.phi3v:Phi3V", modalities=_SEEING),
    ModelOffer("dots_ocr", ("DotsOCRForCausalLM",), "lsv_models.senses.dots_ocr:DotsOCR", modalities=_SEEING),
    ModelOffer(
        "glm4v_9b",
        ("GLM4VForCausalLM",),
        "lsv_models.senses.glm4v_9b:Glm4v9b",
        told_by={"ChatGLMModel": "vision_config", "ChatGLMForConditionalGeneration": "vision_config"},
        modalities=_SEEING,
    ),
    ModelOffer("glm4v", ("Glm4vForConditionalGeneration",), "lsv_models.senses.glm4v:Glm4v", modalities=_WATCHING),
    ModelOffer(
        "qwen3_vl",
        ("Qwen3VLForConditionalGeneration",),
        "lsv_models.senses.qwen3_vl:Qwen3VL",
        modalities=_WATCHING,
    ),
    ModelOffer(
        "qwen3_vl_moe",
        ("Qwen3VLMoeForConditionalGeneration",),
        "lsv_models.senses.qwen3_vl:Qwen3VLMoe",
        modalities=_WATCHING,
    ),
    ModelOffer(
        "qwen2_5_omni",
        ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"),
        "lsv_models.senses.omni.qwen2_5:Qwen25Omni",
        modalities=(*_WATCHING, "audio"),
        note=_NO_SPEECH,
    ),
    ModelOffer(
        "qwen3_omni",
        ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
        "lsv_models.senses.omni.qwen3:Qwen3Omni",
        modalities=(*_WATCHING, "audio"),
        note=_NO_SPEECH,
    ),
    ModelOffer(
        "ultravox",
        ("UltravoxModel",),
        "lsv_models.senses.ultravox:ultravox",
        modalities=("text", "audio"),
        parts=(
            ModelPart("text_model_id", "text_config", "language_model"),
            ModelPart("audio_model_id", "audio_config", "audio_tower"),
        ),
    ),
)
"""Those that stand in files of their own are offered by ``lsv_models.plugin``, Gemma 3 with its family."""
