"""Mistral: Llama with a sliding window."""

from __future__ import annotations

from lsv_models.llama import Llama


class Mistral(Llama):
    """Every layer attends to the last ``sliding_window`` tokens."""

    defaults = {"windows": True}
