"""What this package offers; imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

OFFERS = (
    ModelOffer("mamba", ("MambaForCausalLM",), "lsv_models.recurrent.mamba:Mamba"),
    ModelOffer("falcon_mamba", ("FalconMambaForCausalLM",), "lsv_models.recurrent.mamba:FalconMamba"),
    ModelOffer("mamba2", ("Mamba2ForCausalLM",), "lsv_models.recurrent.mamba2:Mamba2"),
    ModelOffer("bamba", ("BambaForCausalLM",), "lsv_models.recurrent.bamba:Bamba"),
    ModelOffer("jamba", ("JambaForCausalLM",), "lsv_models.recurrent.jamba:Jamba"),
    ModelOffer("lfm2", ("Lfm2ForCausalLM",), "lsv_models.recurrent.lfm2:Lfm2"),
    ModelOffer("qwen3_next", ("Qwen3NextForCausalLM",), "lsv_models.recurrent.qwen3_next:Qwen3Next"),
    ModelOffer("nemotron_h", ("NemotronHForCausalLM",), "lsv_models.recurrent.nemotron_h:NemotronH"),
    ModelOffer("granitemoehybrid", ("GraniteMoeHybridForCausalLM",), "lsv_models.recurrent.granite_hybrid:GraniteHybrid"),
    ModelOffer("falcon_h1", ("FalconH1ForCausalLM",), "lsv_models.recurrent.falcon_h1:FalconH1"),
)
"""Recurrent and hybrid families."""
