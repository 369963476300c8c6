"""Qwen2.5-Omni's thinker: text from text, images, video and sound. The parts that speak are not read.

Source: Xu et al. 2025 (Qwen2.5-Omni).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lsv.errors import CheckpointError
from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import Decoder
from lsv.nn.encoder import check_placeholder
from lsv.nn.keys import Keys
from lsv.nn.model import Encoder
from lsv.nn.rope import MRope
from lsv.weights.place import Weights
from lsv_models.qwen2 import Qwen2Layer
from lsv_models.qwen2_5_vl import Qwen25VLEncoder, WindowLayer
from lsv_models.senses.towers.hearing import HearingConfig, HearingTower

_TOKENS = {"image_token_index": 151655, "video_token_index": 151656, "audio_token_index": 151646}
# what only the processor reads, and what is said of the parts that speak
_BESIDE = (
    "position_id_per_seconds", "seconds_per_chunk", "talker_config", "token2wav_config", "enable_audio_output",
    "enable_talker", "hidden_size",
)  # fmt: skip


class OmniLayer(WindowLayer):
    projections = ("q", "k", "v")


class OmniVision(Qwen25VLEncoder):
    layer = OmniLayer


@dataclass(frozen=True, slots=True)
class OmniState:
    """An item in both towers, None where it has nothing for one; ``order`` is that of what they have seen and heard."""

    seen: Any
    heard: Any
    order: torch.Tensor | None


class OmniEncoder(Encoder):
    """Images and videos have the inputs of Qwen2.5-VL, sounds ``features`` [bins, frames]; a video with its sound has
    both, and ``order`` int64 [count]: which embedding is next, counted from the first seen to the last heard.
    """

    def __init__(self, vision: Qwen25VLEncoder, hearing: HearingTower) -> None:
        super().__init__()
        self.vision, self.hearing = vision, hearing
        self.parts = max(vision.parts, hearing.parts)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> OmniState:
        seen = self.vision.begin(inputs) if "pixel_values" in inputs else None
        heard = self.hearing.begin(inputs) if "features" in inputs else None
        return OmniState(seen, heard, inputs.get("order"))

    def advance(self, state: OmniState, part: int) -> OmniState | torch.Tensor:
        seen, heard = _advance(self.vision, state.seen, part), _advance(self.hearing, state.heard, part)
        if part + 1 < self.parts:
            return OmniState(seen, heard, state.order)
        rows = torch.cat([one for one in (seen, heard) if one is not None])
        return rows if state.order is None else rows[state.order]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        """A video: so many embeddings of sound are made of half as many tokens."""
        return self.vision.largest(most)


def _advance(tower: Encoder, state: Any, part: int) -> Any:
    return state if state is None or part >= tower.parts else tower.advance(state, part)


class Qwen25Omni(Decoder):
    """Checkpoints of the whole model, or of the thinker alone."""

    axes = MRope.axes
    prefixes = (
        ("thinker.model", "model"),
        ("thinker.lm_head", "lm_head"),
        ("thinker.visual", "visual"),
        ("thinker.audio_tower", "audio_tower"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c, place = _read_language(keys), w.replicated()
        vision = OmniVision.read(place / "visual", keys.take("vision_config", dict), "Qwen25Omni")
        hearing = HearingTower(place / "audio_tower", HearingConfig.read(keys.take("audio_config", dict)))
        for name, outputs in (("vision_config", vision.c.outputs), ("audio_config", hearing.c.outputs)):
            if outputs != c.hidden_size:
                raise CheckpointError(
                    f"config.json: {name} makes embeddings of {outputs}, the text has {c.hidden_size}"
                )
        for name, token in _TOKENS.items():
            check_placeholder(name, keys.take(name, int, token), c.vocab_size)
        keys.skip(*_BESIDE)
        keys.finish(type(self).__name__)
        rope = MRope(w, c.rope, max_len)
        super().__init__(w, c, (Qwen2Layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
        self.encoder = OmniEncoder(vision, hearing)
        self.ignores = (*self.ignores, r"^(talker|token2wav)\.", r"^audio_tower\.audio_bos_eos_token\.")

    def rename(self, name: str) -> str:
        return super().rename(name).replace(".out_proj.", ".o_proj.")


def _read_language(keys: Keys) -> DecoderConfig:
    """The numbers of ``text_config``. The head is tied where that says so and the whole does: files of either kind have
    one of the two by default.
    """
    text = keys.take("text_config", dict)
    tied = keys.take("tie_word_embeddings", bool, False) and text.get("tie_word_embeddings", True)
    own = Keys({**text, "tie_word_embeddings": tied})
    c = DecoderConfig.read(own, rope_theta=1e6, first_window=28)
    own.finish("the text_config of Qwen25Omni")
    return c
