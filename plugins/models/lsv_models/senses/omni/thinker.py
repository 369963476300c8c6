"""What omni models have in common: two towers that make one encoder, and the names of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.qwen2_vl import Qwen2VL, Qwen2VLEncoder
from lsv_models.senses.towers.hearing import HearingTower
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import Encoder
from lsv_runtime.weights.place import Weights

# what only the processor reads, and what is said of the parts that speak
_BESIDE = (
    "position_id_per_seconds", "seconds_per_chunk", "talker_config", "token2wav_config", "code2wav_config",
    "enable_audio_output", "enable_talker", "hidden_size",
)  # fmt: skip
_IGNORED = (r"^(talker|token2wav|code2wav)\.", r"^audio_tower\.audio_bos_eos_token\.")


@dataclass(frozen=True, slots=True)
class OmniState:
    """An item in both towers, None where it has nothing for one; ``order`` is that of what they have seen and heard."""

    seen: Any
    heard: Any
    order: torch.Tensor | None


class OmniEncoder(Encoder):
    """Images and videos have the inputs of ``vision``, sounds ``features`` [bins, frames]; a video with its sound has
    both, and ``order`` int64 [count]: which embedding is next, counted from the first seen to the last heard.
    """

    def __init__(self, vision: Qwen2VLEncoder, hearing: HearingTower) -> None:
        super().__init__()
        self.vision, self.hearing = vision, hearing
        self.parts = max(vision.parts, hearing.parts)
        self.width, self.deeper = vision.width, vision.deeper

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> OmniState:
        seen = self.vision.begin(inputs) if "pixel_values" in inputs else None
        heard = self.hearing.begin(inputs) if "features" in inputs else None
        return OmniState(seen, heard, inputs.get("order"))

    def advance(self, state: OmniState, part: int) -> OmniState | torch.Tensor:
        seen, heard = _advance(self.vision, state.seen, part), _advance(self.hearing, state.heard, part)
        if part + 1 < self.parts:
            return OmniState(seen, heard, state.order)
        if heard is not None and self.deeper:
            # nothing goes deeper of what is heard
            heard = functional.pad(heard, (0, self.width - heard.shape[1]))
        rows = torch.cat([one for one in (seen, heard) if one is not None])
        return rows if state.order is None else rows[state.order]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        """A video: so many embeddings of sound are made of fewer tokens."""
        return self.vision.largest(most)


def _advance(tower: Encoder, state: Any, part: int) -> Any:
    return state if state is None or part >= tower.parts else tower.advance(state, part)


class Thinker(Qwen2VL):
    """A family that sees and, behind it among the bases, the one that it sees as. Checkpoints are of the whole model,
    or of the part that writes text alone.
    """

    hearing: ClassVar[type[HearingTower]]
    prefixes = (
        # what transformers calls its modules, as adapters may
        *((f"{whole}model.language_model", "model") for whole in ("thinker.", "")),
        *((f"{whole}model.{tower}", tower) for whole in ("thinker.", "") for tower in ("visual", "audio_tower")),
        ("thinker.model", "model"),
        ("thinker.lm_head", "lm_head"),
        ("thinker.visual", "visual"),
        ("thinker.audio_tower", "audio_tower"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, config, max_len)
        self.ignores = (*self.ignores, *_IGNORED)

    def make_encoder(self, w: Weights, keys: Keys, c: DecoderConfig) -> OmniEncoder:
        keys.skip(*_BESIDE)
        vision = super().make_encoder(w, keys, c)
        hearing = self.hearing.read(w / "audio_tower", keys.take("audio_config", dict), type(self).__name__)
        for name, outputs in (("vision_config", vision.c.outputs), ("audio_config", hearing.c.outputs)):
            if outputs != c.hidden_size:
                raise CheckpointError(
                    f"config.json: {name} makes embeddings of {outputs}, the text has {c.hidden_size}"
                )
        return OmniEncoder(vision, hearing)
