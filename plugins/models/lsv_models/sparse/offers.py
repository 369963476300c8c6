"""The families with experts, and those with latent attention."""

from __future__ import annotations

from lsv.offers import ModelOffer

_TASKS = ("generate", "embed")
_FAMILIES = (
    ("deepseek_v2", "DeepseekV2ForCausalLM", "deepseek:DeepseekV2"),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek:DeepseekV3"),
    ("kimi_k2", "KimiK2ForCausalLM", "deepseek:DeepseekV3"),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "deepseek:Glm4MoeLite"),
    ("qwen2_moe", "Qwen2MoeForCausalLM", "qwen2_moe:Qwen2Moe"),
    ("olmoe", "OlmoeForCausalLM", "olmoe:Olmoe"),
    ("glm4_moe", "Glm4MoeForCausalLM", "glm4_moe:Glm4Moe"),
    ("granitemoe", "GraniteMoeForCausalLM", "granite:GraniteMoe"),
    ("granitemoeshared", "GraniteMoeSharedForCausalLM", "granite:GraniteMoe"),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", "ernie:Ernie45Moe"),
    ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", "hunyuan:HunyuanMoe"),
    ("dbrx", "DbrxForCausalLM", "dbrx:Dbrx"),
    ("phimoe", "PhimoeForCausalLM", "phimoe:PhiMoe"),
    ("llama4", "Llama4ForCausalLM", "llama4:Llama4"),
    ("arctic", "ArcticForCausalLM", "arctic:Arctic"),
    ("gpt_oss", "GptOssForCausalLM", "gpt_oss:GptOss"),
)
_FURTHER = {"deepseek_v3": "DeepseekFurther", "kimi_k2": "DeepseekFurther", "glm4_moe": "Glm4MoeFurther"}
_OTHER_NAMES = {"phimoe": ("PhiMoEForCausalLM",), "ernie4_5_moe": ("Ernie4_5_MoEForCausalLM",)}
"""What else checkpoints call an architecture."""

OFFERS = tuple(
    ModelOffer(
        name,
        (architecture, *_OTHER_NAMES.get(name, ())),
        f"lsv_models.sparse.{load}",
        _TASKS,
        further=f"lsv_models.sparse.further:{_FURTHER[name]}" if name in _FURTHER else None,
    )
    for name, architecture, load in _FAMILIES
)
