"""Qwen3-VL's images, and its videos: pairs of frames between the marks of images, each behind its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv_multimodal.families.glm4v import Glm4vPlacement, Glm4vProcessor

_MARKS = {"vision_start_token_id": 151652, "vision_end_token_id": 151653}


class Qwen3VLPlacement(Glm4vPlacement):
    """As GLM-4.1V's; what a caller gives as embeddings has what goes deeper beside them."""

    tokens = {}

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        start, end = (int(config.get(name, default)) for name, default in _MARKS.items())
        video = self.placeholders["video"]
        self._opens, self._closes = (start, video), (video, end)
        self.width = deep_width(config["vision_config"])

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """See ``Completing``: each pair of frames has marks around it, so those that templates write around the whole
        video go.
        """
        framed = [None, *ids, None]
        triples = zip(framed, ids, framed[2:], strict=False)
        return [
            token
            for before, token, behind in triples
            if (token, behind) != self._opens and (before, token) != self._closes
        ]


class Qwen3VLProcessor(Glm4vProcessor):
    """``min_pixels`` and ``max_pixels`` bound an image, or all frames of a video together."""

    tokens = {}
    marks = _MARKS
    video = (128 * 32 * 32, 768 * 32 * 32)

    def counted(self, frames: int) -> int:
        return max(frames, int(self._processor.temporal_patch_size))

    def lay_out(self, count: int, times: npt.NDArray[np.float32]) -> tuple[tuple[int, ...], int]:
        # as decimals, which say what the frames' indices by the frame rate do: of 0.3 in single precision, 0.3
        first, last = (float(str(time)) for time in (times[0], times[-1]))
        written = self._tokenizer.encode(f"<{(first + last) / 2:.1f} seconds>", add_special_tokens=False).ids
        start, end = self._marks
        return (*written, start, *(self._tokens["video"],) * count, end), len(written) + 1


def deep_width(vision: Mapping[str, Any]) -> int:
    """The numbers of an embedding with what goes deeper beside it."""
    return int(vision["out_hidden_size"]) * (1 + len(vision.get("deepstack_visual_indexes", (8, 16, 24))))
