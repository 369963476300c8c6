"""Names that transformers does not have, of architectures that run here."""

from __future__ import annotations

from collections.abc import Mapping

HALVES: Mapping[str, str] = {
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
}
"""``model_type`` of language models that transformers has as parts of larger ones alone -> those that they equal for
text, whose positions are the same on every axis."""

WHOLE = ("cosmos3_omni", "inkling2", "inkling_mm_model")
"""Families that name the tensors of their language model as no other does, by ``model_type``."""

ALIASES: Mapping[str, str] = {
    "BailingMoeV3ForCausalLM": "BailingHybridForCausalLM",
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "GteNewForSequenceClassification": "NewForSequenceClassification",
    "GteNewModel": "NewModel",
    "HyV3ForCausalLM": "HYV3ForCausalLM",
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "LLaMAForCausalLM": "LlamaForCausalLM",
}
"""Of checkpoints, and of vLLM's registry."""
