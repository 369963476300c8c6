"""Qwen3-Omni's images, video and sounds, and a video with its sound: each at its time.

Source: Qwen Team 2025 (Qwen3-Omni), section 2.3 (TM-RoPE).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.request.media import Media
from lsv_multimodal.families.omni.thinker import OmniPlacement, OmniProcessor, Tempo
from lsv_multimodal.families.qwen2_vl import read_array
from lsv_multimodal.families.qwen3_vl import deep_width
from lsv_multimodal.families.whisper.audio import HOP, log_mel

_TOKENS = {"audio": 151675, "audio_start": 151669, "audio_end": 151670}
_SECONDS = 40 * 60
"""Of the longest sound: what the model is said to understand."""
_REDUCTION = 8
"""Frames of an embedding."""


class Qwen3OmniPlacement(OmniPlacement):
    """Places are whole: the times of a video's frames are rounded to the nearest.

    What a caller gives as embeddings has what goes deeper beside them, which is zero for a sound.
    """

    tokens = _TOKENS

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self.width = deep_width(config["vision_config"])

    def times(self, frames: npt.NDArray[Any], pace: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return np.rint(super().times(frames, pace))

    def last(self, item: Media, seen: int) -> int:
        turns = np.flatnonzero(np.diff(read_array(item, "order") < seen))
        return item.count - 1 - int(turns[-1])


class Qwen3OmniProcessor(OmniProcessor):
    """Sounds of up to 40 minutes; what is seen and heard of a video follows one another by its times."""

    tokens = _TOKENS
    least = 1000 * HOP // OmniProcessor.rate

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._span = 2 * int(config["audio_config"].get("n_window", 50))
        self._places = Tempo.read(config)

    def longest(self, extractor: Mapping[str, Any]) -> int:
        return _SECONDS

    def listen(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return log_mel(samples, self._filters)

    def count(self, frames: int) -> int:
        whole, rest = divmod(frames, self._span)
        return whole * -(-self._span // _REDUCTION) - (-rest // _REDUCTION)

    def weave(self, seen: npt.NDArray[Any], pace: npt.NDArray[Any], heard: int) -> npt.NDArray[np.int64]:
        times = np.concatenate((self._places.times(seen, pace), np.arange(heard)))
        return np.argsort(times, kind="stable")
