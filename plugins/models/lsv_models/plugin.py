"""``lsv-models``: the model architectures, and an adapter for every other one that transformers knows."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import ModelOffer

api = 1

_TASKS = ("generate", "embed")
_SEEING = ("text", "image")
_WATCHING = ("text", "image", "video")
_HEARING = ("text", "audio")
_GEMMA = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
# their activations exceed float16's largest number, 65504; both were trained in bfloat16
_OVERFLOWS = {"float16": "its activations overflow; use bfloat16 or float32"}


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer("llama", ("LlamaForCausalLM", "LlamaModel"), "lsv_models.llama:Llama", _TASKS)
    yield ModelOffer("mistral", ("MistralForCausalLM", "MistralModel"), "lsv_models.mistral:Mistral", _TASKS)
    yield ModelOffer("mixtral", ("MixtralForCausalLM",), "lsv_models.mixtral:Mixtral", _TASKS)
    yield ModelOffer("qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), "lsv_models.qwen2:Qwen2", _TASKS)
    yield ModelOffer("qwen3", ("Qwen3ForCausalLM", "Qwen3Model"), "lsv_models.qwen3:Qwen3", _TASKS)
    yield ModelOffer("qwen3_moe", ("Qwen3MoeForCausalLM",), "lsv_models.qwen3_moe:Qwen3Moe", _TASKS)
    yield ModelOffer("llava", ("LlavaForConditionalGeneration",), "lsv_models.llava:Llava", modalities=_SEEING)
    yield ModelOffer(
        "llava_next", ("LlavaNextForConditionalGeneration",), "lsv_models.llava:LlavaNext", modalities=_SEEING
    )
    yield ModelOffer(
        "qwen2_vl", ("Qwen2VLForConditionalGeneration",), "lsv_models.qwen2_vl:Qwen2VL", modalities=_WATCHING
    )
    yield ModelOffer(
        "qwen2_5_vl", ("Qwen2_5_VLForConditionalGeneration",), "lsv_models.qwen2_5_vl:Qwen25VL", modalities=_WATCHING
    )
    yield ModelOffer("whisper", ("WhisperForConditionalGeneration",), "lsv_models.whisper:Whisper", modalities=_HEARING)
    yield ModelOffer("gemma", _GEMMA, "lsv_models.generic:Generic", _TASKS, unstable=_OVERFLOWS)
    yield ModelOffer("transformers", (), "lsv_models.generic:Generic", _TASKS, fallback=True)
