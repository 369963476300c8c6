"""``lsv-models``: the model architectures, and an adapter for every other one that transformers knows."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import FamilyOffer, ModelOffer
from lsv_models import rereading_offers as rereading
from lsv_models import seeing_offers as seeing
from lsv_models.gemma import offers as gemma
from lsv_models.gpt import offers as gpt
from lsv_models.pooling import offers as pooling
from lsv_models.recurrent import offers as recurrent
from lsv_models.rms import offers as rms
from lsv_models.senses import offers as senses
from lsv_models.seq2seq import offers as seq2seq
from lsv_models.sparse import offers as sparse

api = 2

_TASKS = ("generate", "embed")
_SEEING = ("text", "image")
_WATCHING = ("text", "image", "video")
_HEARING = ("text", "audio")


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer("llama", ("LlamaForCausalLM", "LlamaModel"), "lsv_models.llama:Llama", _TASKS)
    yield ModelOffer("mistral", ("MistralForCausalLM", "MistralModel"), "lsv_models.mistral:Mistral", _TASKS)
    yield ModelOffer("mixtral", ("MixtralForCausalLM",), "lsv_models.mixtral:Mixtral", _TASKS)
    yield ModelOffer("qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), "lsv_models.qwen2:Qwen2", _TASKS)
    yield ModelOffer("qwen3", ("Qwen3ForCausalLM", "Qwen3Model"), "lsv_models.qwen3:Qwen3", _TASKS)
    yield ModelOffer("qwen3_moe", ("Qwen3MoeForCausalLM",), "lsv_models.qwen3_moe:Qwen3Moe", _TASKS)
    yield from sparse.OFFERS
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
    yield ModelOffer(
        "whisper", ("WhisperForConditionalGeneration",), "lsv_models.whisper:Whisper", modalities=_HEARING,
        bounded_positions=True,
    )  # fmt: skip
    yield from senses.OFFERS
    yield from gemma.OFFERS
    yield from rms.OFFERS
    yield from gpt.OFFERS
    yield from recurrent.OFFERS
    yield from pooling.OFFERS
    yield from rereading.OFFERS
    yield from seq2seq.OFFERS
    yield from seeing.OFFERS
    yield ModelOffer("transformers", (), "lsv_models.generic:Generic", _TASKS, fallback=True, adapts=True)


@hookimpl
def lsv_families() -> Iterable[FamilyOffer]:
    yield FamilyOffer("transformers", "lsv_models.families:read_families")
