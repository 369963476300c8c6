"""What this package offers; imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

OFFERS = (
    ModelOffer("mamba2", ("Mamba2ForCausalLM",), "lsv_models.recurrent.mamba2:Mamba2"),
)
"""Recurrent and hybrid families."""
