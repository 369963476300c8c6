"""The GPT line, as the plugin offers it."""

from __future__ import annotations

from lsv.offers import ModelOffer

_TASKS = ("generate", "embed")


def _offer(name: str, place: str, *architectures: str, bounded: bool = False) -> ModelOffer:
    return ModelOffer(name, architectures, f"lsv_models.gpt.{place}", _TASKS, bounded_positions=bounded)


OFFERS = (
    _offer("gpt2", "gpt2:Gpt2", "GPT2LMHeadModel", "GPT2Model", bounded=True),
    _offer("jais", "jais:Jais", "JAISLMHeadModel"),
    _offer("gpt_bigcode", "bigcode:GptBigCode", "GPTBigCodeForCausalLM", "GPTBigCodeModel", bounded=True),
    _offer("gptj", "gptj:GptJ", "GPTJForCausalLM", "GPTJModel"),
    _offer("codegen", "gptj:CodeGen", "CodeGenForCausalLM", "CodeGenModel"),
    _offer("gpt_neox", "neox:GptNeoX", "GPTNeoXForCausalLM", "GPTNeoXModel"),
    _offer("gpt_neo", "neo:GptNeo", "GPTNeoForCausalLM", "GPTNeoModel", bounded=True),
    _offer("opt", "opt:Opt", "OPTForCausalLM", "OPTModel", bounded=True),
    _offer("bloom", "bloom:Bloom", "BloomForCausalLM", "BloomModel"),
    _offer("mpt", "mpt:Mpt", "MptForCausalLM", "MPTForCausalLM", "MptModel"),
    _offer("falcon", "falcon:Falcon", "FalconForCausalLM", "RWForCausalLM", "FalconModel"),
    _offer("phi", "phi:Phi", "PhiForCausalLM", "PhiModel"),
    _offer("stablelm", "stablelm:StableLm", "StableLmForCausalLM", "StableLMEpochForCausalLM", "StableLmModel"),
    _offer("orion", "stablelm:Orion", "OrionForCausalLM"),
    _offer("starcoder2", "starcoder2:Starcoder2", "Starcoder2ForCausalLM", "Starcoder2Model"),
    _offer("cohere", "cohere:Cohere", "CohereForCausalLM", "CohereModel"),
    _offer("cohere2", "cohere:Cohere2", "Cohere2ForCausalLM", "Cohere2Model"),
    _offer("nemotron", "nemotron:Nemotron", "NemotronForCausalLM", "NemotronModel"),
    _offer("olmo", "olmo:Olmo", "OlmoForCausalLM", "OLMoForCausalLM", "OlmoModel"),
    _offer("persimmon", "persimmon:Persimmon", "PersimmonForCausalLM", "PersimmonModel"),
)
