"""What this package offers; imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_BLOCK = 256
"""A state of these is as large as the K and V of hundreds of tokens."""


def _offer(name: str, architecture: str, load: str, block_size: int | None = None) -> ModelOffer:
    return ModelOffer(name, (architecture,), f"lsv_models.recurrent.{load}", block_size=block_size)


OFFERS = (
    _offer("mamba", "MambaForCausalLM", "mamba:Mamba"),
    _offer("falcon_mamba", "FalconMambaForCausalLM", "mamba:FalconMamba"),
    _offer("mamba2", "Mamba2ForCausalLM", "mamba2:Mamba2"),
    _offer("bamba", "BambaForCausalLM", "bamba:Bamba", _BLOCK),
    _offer("jamba", "JambaForCausalLM", "jamba:Jamba", _BLOCK),
    _offer("lfm2", "Lfm2ForCausalLM", "lfm2:Lfm2"),
    _offer("qwen3_next", "Qwen3NextForCausalLM", "qwen3_next:Qwen3Next", _BLOCK),
    _offer("qwen3_5", "Qwen3_5ForCausalLM", "qwen3_next:Qwen35", _BLOCK),
    _offer("nemotron_h", "NemotronHForCausalLM", "nemotron_h:NemotronH", _BLOCK),
    _offer("granitemoehybrid", "GraniteMoeHybridForCausalLM", "granite_hybrid:GraniteHybrid", _BLOCK),
    _offer("falcon_h1", "FalconH1ForCausalLM", "falcon_h1:FalconH1", _BLOCK),
)
"""Recurrent and hybrid families. Without attention nothing is lost on small blocks."""
