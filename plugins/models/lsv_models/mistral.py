"""Mistral: Llama with a sliding window."""

from __future__ import annotations

from lsv_models.llama import Llama


class Mistral(Llama):
    """Every layer sees as many tokens as ``sliding_window`` of config.json says, which the common keys cover."""
