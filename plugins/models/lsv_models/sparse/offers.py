"""The families with experts, and those with latent attention."""

from __future__ import annotations

from lsv.offers import ModelOffer

_TASKS = ("generate", "embed")

OFFERS = (
    ModelOffer("deepseek_v2", ("DeepseekV2ForCausalLM",), "lsv_models.sparse.deepseek:DeepseekV2", _TASKS),
    ModelOffer(
        "deepseek_v3", ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"), "lsv_models.sparse.deepseek:DeepseekV3", _TASKS
    ),
)
