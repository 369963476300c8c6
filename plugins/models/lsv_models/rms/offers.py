"""What this package offers. Imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_TASKS = ("generate", "embed")


def _offer(name: str, load: str, *architectures: str) -> ModelOffer:
    return ModelOffer(name, architectures, f"lsv_models.{load}", _TASKS)


OFFERS = (
    _offer("phi3", "rms.phi3:Phi3", "Phi3ForCausalLM", "Phi3Model"),
    ModelOffer(
        "phi3small",
        ("Phi3SmallForCausalLM",),
        "lsv_models.rms.phi3small:Phi3Small",
        _TASKS,
        note="more than 1,024 tokens not on Gaudi",
    ),
    _offer("glm", "rms.glm:Glm", "GlmForCausalLM", "GlmModel"),
    _offer("glm4", "rms.glm:Glm4", "Glm4ForCausalLM", "Glm4Model"),
    ModelOffer(
        "chatglm", ("ChatGLMModel", "ChatGLMForConditionalGeneration"), "lsv_models.rms.chatglm:ChatGLM", ("generate",)
    ),
    _offer("granite", "rms.granite:Granite", "GraniteForCausalLM", "GraniteModel"),
    _offer("olmo2", "rms.olmo:Olmo2", "Olmo2ForCausalLM", "Olmo2Model"),
    _offer("olmo3", "rms.olmo:Olmo3", "Olmo3ForCausalLM", "Olmo3Model"),
    _offer("smollm3", "rms.smollm3:SmolLM3", "SmolLM3ForCausalLM", "SmolLM3Model"),
    _offer("exaone", "rms.exaone:Exaone3", "ExaoneForCausalLM"),
    _offer("exaone4", "rms.exaone:Exaone4", "Exaone4ForCausalLM", "Exaone4Model"),
    _offer("seed_oss", "rms.seed_oss:SeedOss", "SeedOssForCausalLM", "SeedOssModel"),
    _offer("hunyuan", "rms.hunyuan:Hunyuan", "HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"),
    _offer("ernie4_5", "rms.ernie:Ernie45", "Ernie4_5ForCausalLM", "Ernie4_5Model"),
    ModelOffer("qwen", ("QWenLMHeadModel",), "lsv_models.rms.qwen:QWen", _TASKS, length_key="seq_length"),
    _offer("internlm", "rms.internlm:InternLM", "InternLMForCausalLM"),
    _offer("internlm2", "rms.internlm:InternLM2", "InternLM2ForCausalLM"),
    _offer("internlm3", "rms.internlm:InternLM3", "InternLM3ForCausalLM", "InternLM3Model"),
    _offer("minicpm", "rms.minicpm:MiniCPM", "MiniCPMForCausalLM"),
    _offer("minicpm3", "rms.minicpm:MiniCPM3", "MiniCPM3ForCausalLM", "MiniCPM3Model"),
    _offer("baichuan", "rms.baichuan:Baichuan", "BaichuanForCausalLM", "BaiChuanForCausalLM"),
    _offer("decilm", "rms.decilm:DeciLM", "DeciLMForCausalLM"),
    _offer("ministral", "mistral:Mistral", "MinistralForCausalLM", "MinistralModel"),
    _offer("aquila", "llama:Llama", "AquilaForCausalLM", "AquilaModel"),
    _offer("xverse", "llama:Llama", "XverseForCausalLM"),
)
"""Native families with Llama's block or a variation of it."""
