"""What fetches and decodes media, and the processors of families that take them."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import LogitsProcessorOffer, MediaOffer, ProcessorOffer

api = 1


@hookimpl
def lsv_media() -> Iterable[MediaOffer]:
    yield MediaOffer(
        "local", load="lsv_multimodal.service:LocalMediaService", offline="lsv_multimodal.offline:InProcessMedia"
    )


@hookimpl
def lsv_processors() -> Iterable[ProcessorOffer]:
    yield ProcessorOffer(
        "llava", ("LlavaForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.llava:LlavaProcessor",
        place="lsv_multimodal.families.llava:LlavaPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "llava_next", ("LlavaNextForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.llava:LlavaNextProcessor",
        place="lsv_multimodal.families.llava:LlavaPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "blip2", ("Blip2ForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.blip2:Blip2Processor",
        place="lsv_multimodal.families.blip2:Blip2Placement",
    )  # fmt: skip
    yield ProcessorOffer(
        "chameleon", ("ChameleonForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.chameleon:ChameleonProcessor",
        place="lsv_multimodal.families.chameleon:ChameleonPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "fuyu", ("FuyuForCausalLM",), ("image",),
        load="lsv_multimodal.families.fuyu:FuyuProcessor",
        place="lsv_multimodal.families.fuyu:FuyuPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "mllama", ("MllamaForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.mllama:MllamaProcessor",
        place="lsv_multimodal.families.mllama:MllamaPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "qwen2_vl", ("Qwen2VLForConditionalGeneration",), ("image", "video"),
        load="lsv_multimodal.families.qwen2_vl:Qwen2VLProcessor",
        place="lsv_multimodal.families.qwen2_vl:Qwen2VLPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "qwen2_5_vl", ("Qwen2_5_VLForConditionalGeneration",), ("image", "video"),
        load="lsv_multimodal.families.qwen2_vl:Qwen25VLProcessor",
        place="lsv_multimodal.families.qwen2_vl:Qwen25VLPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "internvl_chat", ("InternVLChatModel",), ("image",),
        load="lsv_multimodal.families.internvl:InternVLChatProcessor",
        place="lsv_multimodal.families.internvl:InternVLPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "internvl", ("InternVLForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.internvl:InternVLProcessor",
        place="lsv_multimodal.families.internvl:InternVLPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "gemma3", ("Gemma3ForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.siglip:Gemma3Processor",
        place="lsv_multimodal.families.siglip:Gemma3Placement",
    )  # fmt: skip
    yield ProcessorOffer(
        "paligemma", ("PaliGemmaForConditionalGeneration",), ("image",),
        load="lsv_multimodal.families.siglip:PaliGemmaProcessor",
        place="lsv_multimodal.families.siglip:PaliGemmaPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "glm4v", ("Glm4vForConditionalGeneration",), ("image", "video"),
        load="lsv_multimodal.families.glm4v:Glm4vProcessor",
        place="lsv_multimodal.families.glm4v:Glm4vPlacement",
    )  # fmt: skip
    yield ProcessorOffer(
        "qwen2_5_omni",
        ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"),
        ("image", "video", "audio"),
        load="lsv_multimodal.families.qwen2_5_omni:OmniProcessor",
        place="lsv_multimodal.families.qwen2_5_omni:OmniPlacement",
    )
    yield ProcessorOffer(
        "whisper", ("WhisperForConditionalGeneration",), ("audio",),
        load="lsv_multimodal.families.whisper.audio:WhisperProcessor",
        place="lsv_multimodal.families.whisper.audio:WhisperPlacement",
        transcribe="lsv_multimodal.families.whisper.text:WhisperTranscriber",
    )  # fmt: skip


@hookimpl
def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
    yield LogitsProcessorOffer(
        "whisper",
        "lsv_multimodal.families.whisper.timestamps:TimestampRules",
        arguments="lsv_multimodal.families.whisper.rules:WhisperRules",
    )
