"""What this package offers. Imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_TASKS = ("generate", "embed")
# their activations exceed float16's largest number, 65504; they were trained in bfloat16
_OVERFLOWS = {"float16": "its activations overflow; use bfloat16 or float32"}


def _offer(name: str, load: str, *architectures: str, unstable: dict[str, str] = _OVERFLOWS) -> ModelOffer:
    return ModelOffer(name, architectures, f"lsv_models.gemma.{load}", _TASKS, unstable=unstable)


OFFERS = (
    _offer("gemma", "gemma:Gemma", "GemmaForCausalLM", "GemmaModel", unstable={}),
    _offer("gemma2", "gemma:Gemma2", "Gemma2ForCausalLM", "Gemma2Model"),
    _offer("vaultgemma", "gemma:VaultGemma", "VaultGemmaForCausalLM", "VaultGemmaModel"),
    _offer("gemma3", "gemma:Gemma3", "Gemma3ForCausalLM", "Gemma3TextModel"),
    _offer("gemma3n", "gemma3n:Gemma3n", "Gemma3nForCausalLM", "Gemma3nTextModel"),
    _offer("gemma4", "gemma4:Gemma4", "Gemma4ForCausalLM", "Gemma4TextModel"),
    _offer("gemma4_unified", "gemma4:Gemma4Unified", "Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextModel"),
    ModelOffer(
        "gemma3_seeing",
        ("Gemma3ForConditionalGeneration",),
        "lsv_models.senses.gemma3:gemma3",
        modalities=("text", "image"),
        unstable=_OVERFLOWS,
        positions=131072,
    ),
)
"""Native families of text, from the smallest difference to Llama to the largest."""
