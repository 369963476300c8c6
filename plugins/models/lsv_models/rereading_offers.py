"""What the package ``rereading`` offers; imports no torch. It builds on the adapter, which knows all offers."""

from __future__ import annotations

from lsv.offers import ModelOffer

_NOTE = "for every token it reads the whole text again: what comes of a token depends on those behind it"
_WHY_NOT = "for every token it reads the whole text again: what its layers keep of earlier ones is not cached here"


def _offer(name: str, architecture: str, load: str = "Rereading", note: str = _NOTE) -> ModelOffer:
    return ModelOffer(name, (architecture,), f"lsv_models.rereading.model:{load}", adapts=True, note=note)


def _wrapper(name: str, architecture: str) -> ModelOffer:
    """The language model of a family that takes media, whose tensors have names of their own."""
    return _offer(name, architecture, "RereadingBody", f"text alone; {_WHY_NOT}")


OFFERS = (
    _offer("blt", "BltForCausalLM"),
    _offer("cpmant", "CpmAntForCausalLM"),
    _offer("deepseek_v4", "DeepseekV4ForCausalLM", "RereadingBody", _WHY_NOT),
    _offer("doge", "DogeForCausalLM", note=_WHY_NOT),
    _offer("inkling", "InklingForCausalLM", "RereadingBody", _WHY_NOT),
    _offer("inkling2", "Inkling2ForCausalLM", "RereadingBody", _WHY_NOT),
    _wrapper("glm5_next", "Glm5NextForConditionalGeneration"),
    _wrapper("inkling2_mm", "Inkling2ForConditionalGeneration"),
    _wrapper("kosmos-2", "Kosmos2ForConditionalGeneration"),
    _wrapper("evolla", "EvollaForProteinText2Text"),
    _offer("qwen4_exp", "Qwen4ExpForCausalLM", "RereadingBody", _WHY_NOT),
    _offer("reformer", "ReformerModelWithLMHead"),
    _offer("xlm", "XLMWithLMHeadModel"),
    _offer("xlnet", "XLNetLMHeadModel"),
)
