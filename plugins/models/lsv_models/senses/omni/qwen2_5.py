"""Qwen2.5-Omni's thinker: text from text, images, video and sound. The parts that speak are not read.

Source: Xu et al. 2025 (Qwen2.5-Omni).
"""

from __future__ import annotations

from typing import Any

from lsv_models.qwen2_5_vl import Qwen25VL, Qwen25VLEncoder, WindowLayer
from lsv_models.senses.omni.thinker import Thinker
from lsv_models.senses.towers.hearing import PairTower
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys


class OmniLayer(WindowLayer):
    projections = ("q", "k", "v")


class OmniVision(Qwen25VLEncoder):
    layer = OmniLayer


class Qwen25Omni(Thinker, Qwen25VL):
    tokens = {"image_token_index": 151655, "video_token_index": 151656, "audio_token_index": 151646}
    defaults = {"rope_theta": 1e6, "first_window": 28}
    tower = OmniVision
    hearing = PairTower

    def read_language(self, keys: Keys) -> DecoderConfig:
        """The numbers of ``text_config``. The head is tied where that says so and the whole does: files of either kind
        have one of the two by default.
        """
        text: dict[str, Any] = keys.take("text_config", dict)
        tied = keys.take("tie_word_embeddings", bool, False) and text.get("tie_word_embeddings", True)
        own = Keys({**text, "tie_word_embeddings": tied})
        c = self.read_text(own)
        own.finish("the text_config of Qwen25Omni")
        return c
