"""The processors of families that this package offers. Light: their code is imported when it is chosen."""

from __future__ import annotations

from lsv.offers import ProcessorOffer
from lsv.request.media import Modality

_SEEING: tuple[Modality, ...] = ("image",)
_WATCHING: tuple[Modality, ...] = (*_SEEING, "video")


def _offer(
    name: str,
    architectures: tuple[str, ...],
    modalities: tuple[Modality, ...],
    processor: str,
    placement: str,
    transcriber: str | None = None,
) -> ProcessorOffer:
    """Objects by where they are in this folder; a placement is in its processor's file."""
    file = processor.partition(":")[0]
    return ProcessorOffer(
        name,
        architectures,
        modalities,
        load=f"lsv_multimodal.families.{processor}",
        place=f"lsv_multimodal.families.{file}:{placement}",
        transcribe=None if transcriber is None else f"lsv_multimodal.families.{transcriber}",
    )


OFFERS = (
    _offer("llava", ("LlavaForConditionalGeneration",), _SEEING, "llava:LlavaProcessor", "LlavaPlacement"),
    _offer("llava_next", ("LlavaNextForConditionalGeneration",), _SEEING, "llava:LlavaNextProcessor", "LlavaPlacement"),
    _offer("blip2", ("Blip2ForConditionalGeneration",), _SEEING, "blip2:Blip2Processor", "Blip2Placement"),
    _offer(
        "chameleon",
        ("ChameleonForConditionalGeneration",),
        _SEEING,
        "chameleon:ChameleonProcessor",
        "ChameleonPlacement",
    ),
    _offer("fuyu", ("FuyuForCausalLM",), _SEEING, "fuyu:FuyuProcessor", "FuyuPlacement"),
    _offer("mllama", ("MllamaForConditionalGeneration",), _SEEING, "mllama:MllamaProcessor", "MllamaPlacement"),
    _offer(
        "qwen2_vl", ("Qwen2VLForConditionalGeneration",), _WATCHING, "qwen2_vl:Qwen2VLProcessor", "Qwen2VLPlacement"
    ),
    _offer(
        "qwen2_5_vl",
        ("Qwen2_5_VLForConditionalGeneration",),
        _WATCHING,
        "qwen2_vl:Qwen25VLProcessor",
        "Qwen25VLPlacement",
    ),
    _offer("internvl_chat", ("InternVLChatModel",), _SEEING, "internvl:InternVLChatProcessor", "InternVLPlacement"),
    _offer(
        "internvl", ("InternVLForConditionalGeneration",), _SEEING, "internvl:InternVLProcessor", "InternVLPlacement"
    ),
    _offer("gemma3", ("Gemma3ForConditionalGeneration",), _SEEING, "siglip:Gemma3Processor", "Gemma3Placement"),
    _offer(
        "paligemma", ("PaliGemmaForConditionalGeneration",), _SEEING, "siglip:PaliGemmaProcessor", "PaliGemmaPlacement"
    ),
    _offer("phi3v", ("Phi3VForCausalLM",), _SEEING, "phi3v:Phi3VProcessor", "Phi3VPlacement"),
    _offer("minicpmv", ("MiniCPMV",), _WATCHING, "minicpmv:MiniCPMVProcessor", "MiniCPMVPlacement"),
    _offer("dots_ocr", ("DotsOCRForCausalLM",), _SEEING, "dots_ocr:DotsOCRProcessor", "DotsOCRPlacement"),
    _offer("glm4v_9b", ("GLM4VForCausalLM",), _SEEING, "glm4v_9b:Glm4v9bProcessor", "Glm4v9bPlacement"),
    _offer("glm4v", ("Glm4vForConditionalGeneration",), _WATCHING, "glm4v:Glm4vProcessor", "Glm4vPlacement"),
    _offer(
        "qwen3_vl",
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        _WATCHING,
        "qwen3_vl:Qwen3VLProcessor",
        "Qwen3VLPlacement",
    ),
    _offer(
        "qwen2_5_omni",
        ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"),
        (*_WATCHING, "audio"),
        "omni.qwen2_5:Qwen25OmniProcessor",
        "Qwen25OmniPlacement",
    ),
    _offer(
        "qwen3_omni",
        ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
        (*_WATCHING, "audio"),
        "omni.qwen3:Qwen3OmniProcessor",
        "Qwen3OmniPlacement",
    ),
    _offer("ultravox", ("UltravoxModel",), ("audio",), "ultravox:UltravoxProcessor", "UltravoxPlacement"),
    _offer(
        "whisper",
        ("WhisperForConditionalGeneration",),
        ("audio",),
        "whisper.audio:WhisperProcessor",
        "WhisperPlacement",
        "whisper.text:WhisperTranscriber",
    ),
    ProcessorOffer(
        "transformers",
        (),
        _SEEING,
        load="lsv_multimodal.families.wrapper.images:WrapperProcessor",
        place="lsv_multimodal.families.wrapper.places:make_placement",
        adapts=True,
    ),
)
