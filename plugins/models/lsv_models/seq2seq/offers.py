"""Text encoder-decoders, as the plugin offers them."""

from __future__ import annotations

from typing import Any

from lsv.offers import ModelOffer

_HUGE = {"float16": "its feed-forward blocks reach values that float16 can't hold"}
_OVERFLOWS = {"float16": "its activations overflow; use bfloat16 or float32"}


def _offer(name: str, place: str, *architectures: str, bounded: bool = True, **more: Any) -> ModelOffer:
    load = f"lsv_models.seq2seq.{place}"
    return ModelOffer(name, architectures, load, encodes=True, bounded_positions=bounded, **more)


OFFERS = (
    _offer("bart", "bart:Bart", "BartForConditionalGeneration", "BartModel"),
    _offer("plbart", "bart:PLBart", "PLBartForConditionalGeneration", "PLBartModel"),
    _offer("mvp", "bart:Mvp", "MvpForConditionalGeneration", "MvpModel"),
    _offer("mbart", "mbart:MBart", "MBartForConditionalGeneration", "MBartModel"),
    _offer("m2m_100", "mbart:M2M100", "M2M100ForConditionalGeneration", "M2M100Model"),
    _offer("pegasus", "mbart:Pegasus", "PegasusForConditionalGeneration", "PegasusModel"),
    _offer("blenderbot", "mbart:Blenderbot", "BlenderbotForConditionalGeneration", "BlenderbotModel"),
    _offer("blenderbot_small", "marian:BlenderbotSmall", "BlenderbotSmallForConditionalGeneration"),
    _offer("marian", "marian:Marian", "MarianMTModel", "MarianModel"),
    _offer("fsmt", "fsmt:Fsmt", "FSMTForConditionalGeneration"),
    _offer("t5", "t5:T5", "T5ForConditionalGeneration", "T5WithLMHeadModel", bounded=False, unstable=_HUGE),
    _offer("mt5", "t5:MT5", "MT5ForConditionalGeneration", bounded=False, unstable=_HUGE),
    _offer("led", "led:Led", "LEDForConditionalGeneration", "LEDModel"),
    _offer(
        "bigbird_pegasus", "bigbird:BigBirdPegasus", "BigBirdPegasusForConditionalGeneration", "BigBirdPegasusModel"
    ),
    _offer("pegasus_x", "pegasus_x:PegasusX", "PegasusXForConditionalGeneration", "PegasusXModel"),
    _offer("longt5", "t5:LongT5", "LongT5ForConditionalGeneration", bounded=False, unstable=_HUGE),
    _offer("umt5", "t5:UMT5", "UMT5ForConditionalGeneration", bounded=False, unstable=_HUGE),
    _offer("switch", "experts:Switch", "SwitchTransformersForConditionalGeneration", bounded=False, unstable=_HUGE),
    _offer("nllb_moe", "experts:NllbMoE", "NllbMoeForConditionalGeneration"),
    _offer("seamless_m4t", "seamless:SeamlessText", "SeamlessM4TForTextToText", "SeamlessM4TModel"),
    _offer("seamless_m4t_v2", "seamless:SeamlessText", "SeamlessM4Tv2ForTextToText", "SeamlessM4Tv2Model"),
    _offer("prophetnet", "prophetnet:ProphetNet", "ProphetNetForConditionalGeneration", unused_positions=2),
    _offer("t5gemma", "t5gemma:T5Gemma", "T5GemmaForConditionalGeneration", bounded=False, unstable=_OVERFLOWS),
    _offer("t5gemma2", "t5gemma2:T5Gemma2", "T5Gemma2ForConditionalGeneration", bounded=False, unstable=_OVERFLOWS),
)
