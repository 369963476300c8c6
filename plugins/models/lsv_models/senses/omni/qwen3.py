"""Qwen3-Omni's thinker: text from text, images, video and sound. The parts that speak are not read.

Source: Qwen Team 2025 (Qwen3-Omni).
"""

from __future__ import annotations

from lsv_models.senses.omni.thinker import Thinker
from lsv_models.senses.qwen3_vl import Qwen3VLMoe
from lsv_models.senses.towers.aut import AutTower
from lsv_models.senses.towers.deepstack import DeepEncoder, MergerNames
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys


class OmniVision(DeepEncoder):
    names = MergerNames("merger_list", "ln_q", ("mlp.0", "mlp.2"))


class Qwen3Omni(Thinker, Qwen3VLMoe):
    tokens = {"image_token_id": 151655, "video_token_id": 151656, "audio_token_id": 151675}
    defaults = {**Qwen3VLMoe.defaults, "rope_theta": 1e6}
    tower = OmniVision
    hearing = AutTower

    def read_text(self, keys: Keys) -> DecoderConfig:
        keys.agree("use_qk_norm", True)
        return super().read_text(keys)
